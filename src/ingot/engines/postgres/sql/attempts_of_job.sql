-- The attempts of a job of the tenant that is set, oldest first.
SELECT a.job::text AS job_id, a.number, a.fence, a.worker_id, a.host, a.pid, a.started_at, o.outcome, o.status_after,
    o.finished_at, o.exit_code, o.error, o.percent, o.stage
FROM ingot.attempts AS a
LEFT JOIN ingot.outcomes AS o ON o.job = a.job AND o.fence = a.fence
WHERE a.job = $1
ORDER BY a.fence
