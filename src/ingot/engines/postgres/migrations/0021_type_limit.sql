-- The types of which a tenant has jobs, and their number, which may not exceed the limit of the tenant.

-- `unused` is NULL while the type is in use. A type without jobs is marked with 0, and later with the ID of a transaction:
-- once all earlier transactions have ended, the type can be deleted.
CREATE TABLE ingot.tenant_types (
    tenant      uuid NOT NULL,
    type        text NOT NULL,
    unused      xid8,
    PRIMARY KEY (tenant, type)
);
CREATE INDEX unused_types ON ingot.tenant_types (tenant, type) WHERE unused IS NOT NULL;

-- A transaction that adds or deletes types of a tenant locks this row.
CREATE TABLE ingot.type_counts (
    tenant      uuid PRIMARY KEY,
    types       integer NOT NULL
);

ALTER TABLE ingot.tenant_types ENABLE ROW LEVEL SECURITY;
ALTER TABLE ingot.tenant_types FORCE ROW LEVEL SECURITY;
CREATE POLICY owner ON ingot.tenant_types TO ingot_owner USING (true) WITH CHECK (true);
ALTER TABLE ingot.type_counts ENABLE ROW LEVEL SECURITY;
ALTER TABLE ingot.type_counts FORCE ROW LEVEL SECURITY;
CREATE POLICY owner ON ingot.type_counts TO ingot_owner USING (true) WITH CHECK (true);

-- The types are found by skipping through the index. A type that an enqueue of the earlier version adds meanwhile is added by
-- the next enqueue of that type.
INSERT INTO ingot.tenant_types (tenant, type)
WITH RECURSIVE types AS (
    (SELECT j.tenant, j.type FROM ingot.jobs AS j ORDER BY j.tenant, j.type LIMIT 1)
    UNION ALL
    SELECT n.tenant, n.type FROM types AS k CROSS JOIN LATERAL (
        SELECT j.tenant, j.type FROM ingot.jobs AS j WHERE (j.tenant, j.type) > (k.tenant, k.type)
        ORDER BY j.tenant, j.type LIMIT 1
    ) AS n
)
SELECT tenant, type FROM types;
INSERT INTO ingot.type_counts (tenant, types)
SELECT t.id, (SELECT count(*) FROM ingot.tenant_types AS u WHERE u.tenant = t.id) FROM ingot.tenants AS t;
