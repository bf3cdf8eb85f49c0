-- These running jobs (a JSON array of numbers) have succeeded.
UPDATE states SET
    status = 'succeeded', worker_id = NULL, lease_expires_at = NULL, percent = NULL, stage = NULL, finished_at = ?
WHERE number IN (SELECT value FROM json_each(?))
