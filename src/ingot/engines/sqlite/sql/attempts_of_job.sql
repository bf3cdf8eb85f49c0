-- The attempts of a job, oldest first, when the job is in this tenant.
SELECT CAST(json_group_array(json_array(
    a.job_id, a.fence, a.number, a.worker_id, a.host, a.pid, a.started_at,
    a.outcome, a.status_after, a.finished_at, a.exit_code, a.error, a.percent, a.stage)) AS BLOB)
FROM (
    SELECT a.*, o.outcome, o.status_after, o.finished_at, o.exit_code, o.error, o.percent, o.stage
    FROM states AS s
    JOIN attempts AS a ON a.job_id = s.id
    LEFT JOIN outcomes AS o ON o.job_id = a.job_id AND o.fence = a.fence
    WHERE s.id = ? AND s.tenant = ?
    ORDER BY a.fence
) AS a
