-- Reads that cost the same whatever the number of types of a tenant.

-- The sums of the counts of all types of a tenant. Folding updates them together with the counts.
CREATE TABLE ingot.count_totals (
    tenant      uuid NOT NULL,
    status      text NOT NULL,
    jobs        bigint NOT NULL,
    PRIMARY KEY (tenant, status)
);
ALTER TABLE ingot.count_totals ENABLE ROW LEVEL SECURITY;
ALTER TABLE ingot.count_totals FORCE ROW LEVEL SECURITY;
CREATE POLICY owner ON ingot.count_totals TO ingot_owner USING (true) WITH CHECK (true);
GRANT SELECT ON ingot.count_totals TO ingot_server;
CREATE POLICY tenant ON ingot.count_totals FOR SELECT TO ingot_server
    USING (tenant = nullif(current_setting('ingot.tenant', true), '')::uuid);

-- A call that folds counts locks this row first, or does nothing. Calls of the earlier version would leave out the totals.
SELECT FROM ingot.migrations WHERE number = 1 FOR UPDATE;
LOCK TABLE ingot.counts IN SHARE ROW EXCLUSIVE MODE;
INSERT INTO ingot.count_totals (tenant, status, jobs)
SELECT tenant, status, sum(jobs) FROM ingot.counts GROUP BY tenant, status;

-- Lists of all types read the jobs of a tenant by ID. The condition holds for every job: only statements that contain it can
-- use the index, so the planner never uses it to find the jobs of one type.
CREATE INDEX jobs_by_tenant ON ingot.jobs (tenant, id NULLS FIRST) WHERE depth >= 0;
