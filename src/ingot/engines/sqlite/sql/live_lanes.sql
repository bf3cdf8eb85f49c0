-- The lanes that have ready work, found by jumping from lane to lane in the index, never by reading all of it.
-- One jump for each column of the lane: a comparison of whole rows would only use the first of them.
WITH RECURSIVE lanes (type, tenant, limit_key) AS (
    SELECT * FROM (
        SELECT type, tenant, limit_key FROM states INDEXED BY states_ready
        WHERE status = 'queued' AND due = 1
        ORDER BY type, tenant, limit_key LIMIT 1
    )
    UNION ALL
    SELECT n.type, n.tenant, n.limit_key
    FROM lanes AS l CROSS JOIN states AS n ON n.number = coalesce(
        (
            SELECT number FROM states INDEXED BY states_ready
            WHERE status = 'queued' AND due = 1 AND type = l.type AND tenant = l.tenant AND limit_key > l.limit_key
            ORDER BY limit_key LIMIT 1
        ),
        (
            SELECT number FROM states INDEXED BY states_ready
            WHERE status = 'queued' AND due = 1 AND type = l.type AND tenant > l.tenant
            ORDER BY tenant, limit_key LIMIT 1
        ),
        (
            SELECT number FROM states INDEXED BY states_ready
            WHERE status = 'queued' AND due = 1 AND type > l.type
            ORDER BY type, tenant, limit_key LIMIT 1
        )
    )
)
SELECT l.type, t.id, l.limit_key FROM lanes AS l JOIN tenants AS t ON t.number = l.tenant
WHERE t.removed_at IS NULL
