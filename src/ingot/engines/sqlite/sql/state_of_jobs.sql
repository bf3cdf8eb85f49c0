-- The moving rows of the jobs with these ids (a JSON array), as one JSON text; ids that are not there are left out.
SELECT CAST(json_group_array(json_array(
    s.number, s.id, t.id, s.type, s.limit_key, s.status, json(iif(s.due, 'true', 'false')), s.priority, s.run_at,
    s.attempts, s.failures, s.crashes, s.max_attempts, s.fence, s.dedupe_key, s.worker_id, s.started_at,
    s.lease_expires_at, json(iif(s.cancel_requested, 'true', 'false')), s.percent, s.stage, s.told_at, s.finished_at,
    s.batch)) AS BLOB)
FROM states AS s JOIN tenants AS t ON t.number = s.tenant
WHERE s.id IN (SELECT value FROM json_each(?))
