-- Whole jobs with these numbers (a JSON array), as one JSON text, in no order.
-- Payload, metadata and result are JSON text already: they are pasted in as they are, so that they come back as received.
SELECT CAST('[' || coalesce(group_concat('[' ||
    json_array(
        s.number, s.id, t.id, s.type, s.limit_key, s.status, json(iif(s.due, 'true', 'false')), s.priority, s.run_at,
        s.attempts, s.failures, s.crashes, s.max_attempts, s.fence, s.dedupe_key, s.worker_id, s.started_at,
        s.lease_expires_at, json(iif(s.cancel_requested, 'true', 'false')), s.percent, s.stage, s.told_at, s.finished_at,
        s.batch)
    || ',[' || CAST(j.payload AS TEXT)
    || ',' || coalesce(CAST(j.metadata AS TEXT), 'null')
    || ',' || json_quote(j.created_at)
    || ',' || json_quote(j.source)
    || ',' || json_quote(j.source_ref)
    || ',' || json_quote(j.created_by)
    || ',' || json_quote(j.correlation_id)
    || ',' || json_quote(j.trace_id)
    || ',' || json_quote(j.idempotency_key)
    || ',' || coalesce(j.inputs, '{}')
    || ',' || json_quote(j.payload_blob)
    || ',' || json_quote(j.depth)
    || ',' || (SELECT json_group_array(g.tag) FROM tags AS g WHERE g.job = s.number)
    || ',' || (
        SELECT json_group_array(w.parent_id ORDER BY w.parent_id) FROM waits AS w WHERE w.job = s.number)
    || ',' || iif(EXISTS (SELECT 1 FROM waits AS w WHERE w.job = s.number AND w.runs_anyway), 'true', 'false')
    || ',' || iif(s.failures + s.crashes > 0, json_quote((
        SELECT o.error FROM outcomes AS o
        WHERE o.job = s.number AND o.error IS NOT NULL ORDER BY o.fence DESC LIMIT 1)), json_quote(j.reason))
    || ',' || iif(s.status = 'succeeded', coalesce(CAST((
        SELECT o.result FROM outcomes AS o WHERE o.job = s.number AND o.fence = s.fence) AS TEXT), 'null'), 'null')
    || ']]'), '') || ']' AS BLOB)
FROM states AS s JOIN tenants AS t ON t.number = s.tenant JOIN jobs AS j ON j.number = s.number
WHERE s.number IN (SELECT value FROM json_each(?))
