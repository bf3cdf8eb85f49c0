-- Lease jobs to those who take them: a JSON array of [fence, worker, expiry, host, pid, [numbers]].
UPDATE states SET
    status = 'running', attempts = attempts + 1, fence = t.fence, worker_id = t.worker_id, started_at = ?,
    lease_expires_at = t.expires_at, percent = NULL, stage = NULL
FROM (
    SELECT
        taker.value ->> 0 AS fence, taker.value ->> 1 AS worker_id, taker.value ->> 2 AS expires_at, job.value AS number
    FROM json_each(?) AS taker, json_each(taker.value, '$[5]') AS job
) AS t
WHERE states.number = t.number
