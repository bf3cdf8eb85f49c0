-- The reasons why a job waits.

-- name: open_parents
-- The unfinished parents of a job and their status, at most 100.
SELECT w.parent::text AS parent, s.status FROM (
    SELECT w.parent FROM ingot.waits AS w WHERE w.job = $1 AND w.open ORDER BY w.parent LIMIT 100
) AS w
CROSS JOIN LATERAL (SELECT s.status FROM ingot.job_rows AS s WHERE s.id = w.parent) AS s
ORDER BY w.parent

-- name: failed_parents
-- The dead and canceled parents of a job that had to succeed, and their status, at most 100.
SELECT w.parent::text AS parent, s.status
FROM (SELECT w.parent FROM ingot.waits AS w WHERE w.job = $1 AND NOT w.runs_anyway ORDER BY w.parent) AS w
CROSS JOIN LATERAL (SELECT s.status FROM ingot.job_rows AS s WHERE s.id = w.parent) AS s
WHERE s.status IN ('dead', 'canceled') LIMIT 100

-- name: canceled_by
-- The caller that canceled a job of the current tenant.
SELECT j.canceled_by FROM ingot.jobs AS j WHERE j.id = $1

-- name: open_uploads
-- The names of inputs whose uploads a job waits for.
SELECT u.name FROM ingot.uploads AS u
WHERE u.job = $1 AND u.job IS NOT NULL AND u.fence IS NULL AND u.state IN ('open', 'verifying')
ORDER BY u.name COLLATE "C"

-- name: count_ready_before
-- The number of ready jobs before one in its lane, up to a limit.
SELECT count(*) FROM (
    SELECT FROM ingot.ready AS r
    WHERE r.type = $1 AND r.tenant = $2 AND r.limit_key = $3 AND (r.priority, r.run_at, r.id) < ($4, $5, $6)
    LIMIT $7
) AS ahead

-- name: running_under_limit
-- The number of leases of the current tenant, optionally of one type and key, and up to ten of their jobs.
SELECT count(*) AS running, (array_agg(l.id::text))[1:10] AS holders FROM ingot.leases AS l
WHERE l.tenant = $1 AND ($2::text IS NULL OR l.type = $2) AND ($3::text IS NULL OR l.limit_key = $3)
