-- The attempts of a job, oldest first, when the job is in this tenant.
SELECT CAST(json_group_array(json_array(
    a.id, a.fence, a.number, a.worker_id, a.host, a.pid, a.started_at,
    a.outcome, a.status_after, a.finished_at, a.exit_code, a.error, a.percent, a.stage)) AS BLOB)
FROM (
    SELECT s.id, a.*, o.outcome, o.status_after, o.finished_at, o.exit_code, o.error, o.percent, o.stage
    FROM states AS s
    JOIN attempts AS a ON a.job = s.number
    LEFT JOIN outcomes AS o ON o.job = a.job AND o.fence = a.fence
    WHERE s.id = ? AND s.tenant = (SELECT number FROM tenants WHERE id = ?)
    ORDER BY a.fence
) AS a
