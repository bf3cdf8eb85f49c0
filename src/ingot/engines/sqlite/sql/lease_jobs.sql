-- Lease these jobs (a JSON array of numbers) to a worker.
UPDATE states SET
    status = 'running', attempts = attempts + 1, fence = ?, worker_id = ?, started_at = ?, lease_expires_at = ?,
    percent = NULL, stage = NULL
WHERE number IN (SELECT value FROM json_each(?))
