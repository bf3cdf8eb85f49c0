-- The moving rows of up to n jobs whose lease ran out first.
SELECT CAST(json_group_array(json_array(
    s.number, s.id, t.id, s.type, s.limit_key, s.status, json(iif(s.due, 'true', 'false')), s.priority, s.run_at,
    s.attempts, s.failures, s.crashes, s.max_attempts, s.fence, s.dedupe_key, s.worker_id, s.started_at,
    s.lease_expires_at, json(iif(s.cancel_requested, 'true', 'false')), s.percent, s.stage, s.told_at, s.finished_at,
    s.batch)) AS BLOB)
FROM (
    SELECT * FROM states
    WHERE status = 'running' AND lease_expires_at <= ?
    ORDER BY lease_expires_at
    LIMIT ?
) AS s JOIN tenants AS t ON t.number = s.tenant
