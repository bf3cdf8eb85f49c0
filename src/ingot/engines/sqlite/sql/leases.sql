-- Running jobs, and the limits that they count against.

-- name: lease_jobs
-- Lease jobs to those who take them: a JSON array of [fence, worker, expiry, host, pid, [numbers]].
WITH takers AS MATERIALIZED (  -- Read once, and not again for each of their jobs.
    SELECT value ->> 0 AS fence, value ->> 1 AS worker_id, value ->> 2 AS expires_at, value -> 5 AS jobs FROM json_each(?2)
)
UPDATE states SET
    status = 'running', attempts = attempts + 1, fence = t.fence, worker_id = t.worker_id, started_at = ?1,
    lease_expires_at = t.expires_at, percent = NULL, stage = NULL
FROM (SELECT takers.*, job.value AS number FROM takers, json_each(takers.jobs) AS job) AS t
WHERE states.number = t.number

-- name: running_jobs
-- How many jobs run, counted so far and no further, and the numbers of those of one tenant.
SELECT CAST(json_array(count(*), json_group_array(number ORDER BY number DESC) FILTER (WHERE tenant = ?)) AS BLOB) FROM (
    SELECT number, tenant FROM states INDEXED BY states_leased WHERE status = 'running' LIMIT ?
)

-- name: leases_held
-- Of these leases, a JSON array of [id, fence], those that are still held.
SELECT CAST(json_group_array(json_array(
    s.id, s.fence, s.lease_expires_at, json(iif(s.cancel_requested, 'true', 'false')))) AS BLOB)
FROM json_each(?) AS asked CROSS JOIN states AS s ON s.id = asked.value ->> 0
WHERE s.fence = asked.value ->> 1 AND s.status = 'running'

-- name: leases_of_worker
-- Up to n running jobs of a worker, or of any instance of a credential, of one tenant or (0) of all.
SELECT CAST(json_group_array(json_array(id, fence)) AS BLOB) FROM (
    SELECT id, fence FROM states INDEXED BY states_leased
    WHERE status = 'running' AND (worker_id = ?1 OR substr(worker_id, 1, length(?1) + 1) = ?1 || '/') AND (?2 = 0 OR tenant = ?2)
    LIMIT ?3
)

-- name: unnamed_leases
-- Up to n running jobs of this very worker, of a tenant or of all, claimed before an instant, that it did not name: those
-- it named are a JSON array of [id, fence].
SELECT CAST(json_group_array(json_array(id, fence)) AS BLOB) FROM (
    SELECT id, fence FROM states INDEXED BY states_held
    WHERE status = 'running' AND worker_id = ?1 AND (?2 = 0 OR tenant = ?2) AND started_at < ?3
        AND (id, fence) NOT IN (SELECT value ->> 0, value ->> 1 FROM json_each(?4))
    LIMIT ?5
)

-- name: expired_leases
-- The moving rows of up to n jobs whose lease ran out first.
SELECT CAST(json_group_array(json_array(
    s.number, s.id, t.id, s.type, s.limit_key, s.status, json(iif(s.due, 'true', 'false')), s.priority, s.run_at,
    s.attempts, s.failures, s.crashes, s.max_attempts, s.fence, s.dedupe_key, s.worker_id, s.started_at,
    s.lease_expires_at, json(iif(s.cancel_requested, 'true', 'false')), s.percent, s.stage, s.told_at, s.finished_at,
    s.batch)) AS BLOB)
FROM (
    SELECT * FROM states
    WHERE status = 'running' AND lease_expires_at <= ?
    ORDER BY lease_expires_at
    LIMIT ?
) AS s JOIN tenants AS t ON t.number = s.tenant

-- name: next_expiry
SELECT min(lease_expires_at) FROM states INDEXED BY states_leased WHERE status = 'running'

-- name: running_of_tenant
-- Whether a job of a tenant runs.
SELECT EXISTS (SELECT 1 FROM states INDEXED BY states_live WHERE tenant = ?1 AND finished_at IS NULL)

-- name: running_by_key
-- How many jobs with a limit key run, of these types and tenants: a JSON array of [type, tenant's id, its number].
SELECT CAST(json_group_array(json_array(type, tenant, limit_key, jobs)) AS BLOB)
FROM (
    SELECT asked.value ->> 0 AS type, asked.value ->> 1 AS tenant, s.limit_key, count(*) AS jobs
    FROM json_each(?) AS asked CROSS JOIN states AS s INDEXED BY states_keyed
        ON s.tenant = asked.value ->> 2 AND s.type = asked.value ->> 0
    WHERE s.status = 'running' AND s.limit_key <> ''
    GROUP BY asked.key, s.limit_key
)

-- name: running_under
-- How many jobs of a tenant run, of one type and key or of any, and some of them.
SELECT CAST(json_array(count(*), json(coalesce(json_group_array(id) FILTER (WHERE place <= 10), '[]'))) AS BLOB)
FROM (
    SELECT id, row_number() OVER () AS place FROM states INDEXED BY states_leased
    WHERE status = 'running' AND tenant = ?1 AND (?2 IS NULL OR type = ?2) AND (?3 IS NULL OR limit_key = ?3)
)
