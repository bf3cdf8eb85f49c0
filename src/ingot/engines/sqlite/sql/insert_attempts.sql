-- Every claim writes the attempt's row, so that a crash leaves its trace. The takers are those of `lease_jobs`.
INSERT INTO attempts (job, fence, number, worker_id, host, pid, started_at)
SELECT s.number, taker.value ->> 0, s.attempts, taker.value ->> 1, taker.value ->> 3, taker.value ->> 4, ?
FROM json_each(?) AS taker, json_each(taker.value, '$[5]') AS job CROSS JOIN states AS s ON s.number = job.value
