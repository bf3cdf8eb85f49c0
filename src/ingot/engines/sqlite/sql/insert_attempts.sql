-- Every claim writes the attempt's row, so that a crash leaves its trace.
INSERT INTO attempts (job_id, fence, number, worker_id, host, pid, started_at)
SELECT id, fence, attempts, worker_id, ?, ?, started_at
FROM states WHERE id IN (SELECT value FROM json_each(?))
