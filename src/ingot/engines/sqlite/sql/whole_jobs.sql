-- Whole jobs with these ids (a JSON array), as one JSON text, in no order.
-- Payload, metadata and result are JSON text already: they are pasted in as they are, so that they come back as received.
SELECT CAST('[' || coalesce(group_concat('[' ||
    json_array(
        s.id, s.body, s.tenant, s.type, s.limit_key, s.status, json(iif(s.due, 'true', 'false')), s.priority, s.run_at,
        s.attempts, s.failures, s.crashes, s.max_attempts, s.fence, s.dedupe_key, s.worker_id, s.started_at,
        s.lease_expires_at, json(iif(s.cancel_requested, 'true', 'false')), s.percent, s.stage, s.told_at, s.finished_at)
    || ',[' || CAST(j.payload AS TEXT)
    || ',' || coalesce(CAST(j.metadata AS TEXT), 'null')
    || ',' || json_quote(j.created_at)
    || ',' || json_quote(j.source)
    || ',' || json_quote(j.source_ref)
    || ',' || json_quote(j.created_by)
    || ',' || json_quote(j.correlation_id)
    || ',' || json_quote(j.trace_id)
    || ',' || json_quote(j.idempotency_key)
    || ',' || json_quote(j.depth)
    || ',' || (SELECT json_group_array(t.tag) FROM tags AS t WHERE t.job_id = s.id)
    || ',' || iif(s.failures + s.crashes > 0, json_quote((
        SELECT o.error FROM outcomes AS o
        WHERE o.job_id = s.id AND o.error IS NOT NULL ORDER BY o.fence DESC LIMIT 1)), 'null')
    || ',' || iif(s.status = 'succeeded', coalesce(CAST((
        SELECT o.result FROM outcomes AS o WHERE o.job_id = s.id AND o.fence = s.fence) AS TEXT), 'null'), 'null')
    || ']]'), '') || ']' AS BLOB)
FROM states AS s JOIN jobs AS j ON j.body = s.body
WHERE s.id IN (SELECT value FROM json_each(?))
