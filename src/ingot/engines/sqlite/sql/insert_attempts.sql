-- Every claim writes the attempt's row, so that a crash leaves its trace.
INSERT INTO attempts (job, fence, number, worker_id, host, pid, started_at)
SELECT number, fence, attempts, worker_id, ?, ?, started_at
FROM states WHERE number IN (SELECT value FROM json_each(?))
