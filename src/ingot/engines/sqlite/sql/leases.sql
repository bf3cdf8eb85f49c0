-- Running jobs and the limits that they count against.

-- name: lease_jobs
-- Lease jobs to claims: a JSON array of [fence, worker, expiry, host, pid, [job numbers]].
WITH claims AS MATERIALIZED (  -- Otherwise the JSON is parsed again for each job.
    SELECT value ->> 0 AS fence, value ->> 1 AS worker_id, value ->> 2 AS expires_at, value -> 5 AS jobs FROM json_each(?2)
)
UPDATE states SET
    status = 'running', attempts = attempts + 1, fence = leased.fence, worker_id = leased.worker_id, started_at = ?1,
    lease_expires_at = leased.expires_at, percent = NULL, stage = NULL
FROM (SELECT claims.*, job.value AS number FROM claims, json_each(claims.jobs) AS job) AS leased
WHERE states.number = leased.number

-- name: running_jobs
-- The number of running jobs of all tenants, counted up to the limit, and the numbers of those of one tenant.
SELECT CAST(json_array(count(*), json_group_array(number ORDER BY number DESC) FILTER (WHERE tenant = ?)) AS BLOB) FROM (
    SELECT number, tenant FROM states INDEXED BY states_leased WHERE status = 'running' LIMIT ?
)

-- name: current_leases
-- Those of these leases (a JSON array of [job ID, fence]) that are still current.
SELECT CAST(json_group_array(json_array(
    s.id, s.fence, s.lease_expires_at, json(iif(s.cancel_requested, 'true', 'false')))) AS BLOB)
FROM json_each(?) AS item CROSS JOIN states AS s ON s.id = item.value ->> 0
WHERE s.fence = item.value ->> 1 AND s.status = 'running'

-- name: leases_of_worker
-- Up to ?3 running jobs of a worker, or of all instances of a worker credential, in one tenant (?2) or in all (0).
SELECT CAST(json_group_array(json_array(id, fence)) AS BLOB) FROM (
    SELECT id, fence FROM states INDEXED BY states_leased
    WHERE status = 'running' AND (worker_id = ?1 OR substr(worker_id, 1, length(?1) + 1) = ?1 || '/') AND (?2 = 0 OR tenant = ?2)
    LIMIT ?3
)

-- name: unreported_leases
-- Up to ?5 running jobs of exactly this worker, in one tenant (?2) or in all (0), that were claimed before ?3 and are
-- not among the leases that the worker reported (?4, a JSON array of [job ID, fence]).
SELECT CAST(json_group_array(json_array(id, fence)) AS BLOB) FROM (
    SELECT id, fence FROM states INDEXED BY states_held
    WHERE status = 'running' AND worker_id = ?1 AND (?2 = 0 OR tenant = ?2) AND started_at < ?3
        AND (id, fence) NOT IN (SELECT value ->> 0, value ->> 1 FROM json_each(?4))
    LIMIT ?5
)

-- name: expired_leases
-- The states of the jobs whose leases expired first, up to a limit.
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

-- name: has_unfinished_jobs
-- Whether a tenant has unfinished jobs.
SELECT EXISTS (SELECT 1 FROM states INDEXED BY states_live WHERE tenant = ?1 AND finished_at IS NULL)

-- name: running_by_limit_key
-- The number of running jobs by limit key, for these types and tenants (a JSON array of [type, tenant ID, tenant
-- number]).
SELECT CAST(json_group_array(json_array(type, tenant, limit_key, jobs)) AS BLOB)
FROM (
    SELECT item.value ->> 0 AS type, item.value ->> 1 AS tenant, s.limit_key, count(*) AS jobs
    FROM json_each(?) AS item CROSS JOIN states AS s INDEXED BY states_keyed
        ON s.tenant = item.value ->> 2 AND s.type = item.value ->> 0
    WHERE s.status = 'running' AND s.limit_key <> ''
    GROUP BY item.key, s.limit_key
)

-- name: running_under_limit
-- The number of running jobs of a tenant, of one type and limit key or of any (NULL), and the IDs of up to ten.
SELECT CAST(json_array(count(*), json(coalesce(json_group_array(id) FILTER (WHERE position <= 10), '[]'))) AS BLOB)
FROM (
    SELECT id, row_number() OVER () AS position FROM states INDEXED BY states_leased
    WHERE status = 'running' AND tenant = ?1 AND (?2 IS NULL OR type = ?2) AND (?3 IS NULL OR limit_key = ?3)
)
