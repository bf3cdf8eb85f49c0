-- Every claim writes the attempt's row, so that a crash leaves its trace. The takers are those of `lease_jobs`.
WITH takers AS MATERIALIZED (
    SELECT value ->> 0 AS fence, value ->> 1 AS worker_id, value ->> 3 AS host, value ->> 4 AS pid, value -> 5 AS jobs
    FROM json_each(?2)
)
INSERT INTO attempts (job, fence, number, worker_id, host, pid, started_at)
SELECT s.number, takers.fence, s.attempts, takers.worker_id, takers.host, takers.pid, ?1
FROM takers, json_each(takers.jobs) AS job CROSS JOIN states AS s ON s.number = job.value
