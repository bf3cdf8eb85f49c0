-- The attempts of a job of the tenant that is set, oldest first.
SELECT a.job::text AS job_id, a.number, a.fence, a.worker_id, a.host, a.pid, a.started_at, a.outcome, a.status_after,
    a.finished_at, a.exit_code, a.error, a.percent, a.stage
FROM ingot.attempts AS a
WHERE a.job = $1
ORDER BY a.fence
