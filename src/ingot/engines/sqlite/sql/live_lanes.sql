-- The lanes that have ready work, found by jumping from lane to lane in the index, never by reading all of it.
WITH RECURSIVE lanes (type, tenant, limit_key) AS (
    SELECT * FROM (
        SELECT type, tenant, limit_key FROM states INDEXED BY states_ready
        WHERE status = 'queued' AND due = 1
        ORDER BY type, tenant, limit_key LIMIT 1
    )
    UNION ALL
    SELECT n.type, n.tenant, n.limit_key
    FROM lanes AS l CROSS JOIN states AS n ON n.number = (
        SELECT number FROM states INDEXED BY states_ready
        WHERE status = 'queued' AND due = 1
            AND (type, tenant, limit_key) > (l.type, l.tenant, l.limit_key)
        ORDER BY type, tenant, limit_key LIMIT 1
    )
)
SELECT l.type, t.id, l.limit_key FROM lanes AS l JOIN tenants AS t ON t.number = l.tenant
