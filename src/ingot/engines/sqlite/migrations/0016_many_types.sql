-- Lists of all types of a tenant read these in the order of job numbers, whatever the number of types.
CREATE INDEX states_live_of_tenant ON states (tenant) WHERE finished_at IS NULL;
CREATE INDEX states_finished_of_tenant ON states (tenant, status) WHERE finished_at IS NOT NULL;

-- The rows of a type remain while the tenant has jobs of it. Rows with type '' count the jobs of all types.
DELETE FROM counts WHERE (tenant, type) IN (
    SELECT tenant, type FROM counts GROUP BY tenant, type HAVING max(jobs) = 0
);
INSERT OR REPLACE INTO counts (tenant, type, status, jobs)
SELECT tenant, '', status, sum(jobs) FROM counts WHERE type > '' GROUP BY tenant, status;
