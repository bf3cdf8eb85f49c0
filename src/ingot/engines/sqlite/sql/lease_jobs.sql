-- Lease jobs to those who take them: a JSON array of [fence, worker, expiry, host, pid, [numbers]].
WITH takers AS MATERIALIZED (  -- Read once, and not again for each of their jobs.
    SELECT value ->> 0 AS fence, value ->> 1 AS worker_id, value ->> 2 AS expires_at, value -> 5 AS jobs FROM json_each(?2)
)
UPDATE states SET
    status = 'running', attempts = attempts + 1, fence = t.fence, worker_id = t.worker_id, started_at = ?1,
    lease_expires_at = t.expires_at, percent = NULL, stage = NULL
FROM (SELECT takers.*, job.value AS number FROM takers, json_each(takers.jobs) AS job) AS t
WHERE states.number = t.number
