-- Tenants that were removed and have left something behind. Since `empty_since` nothing of one was found; the row goes when
-- nobody can add to it any more.
CREATE TABLE ingot.removed_tenants (
    tenant      uuid PRIMARY KEY,
    removed_at  bigint NOT NULL,
    empty_since bigint
);

ALTER TABLE ingot.removed_tenants ENABLE ROW LEVEL SECURITY;
ALTER TABLE ingot.removed_tenants FORCE ROW LEVEL SECURITY;
CREATE POLICY owner ON ingot.removed_tenants TO ingot_owner USING (true) WITH CHECK (true);
