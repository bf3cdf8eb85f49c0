-- When the longest waiting ready job of a tenant, perhaps of one type, became due: the head of every lane and priority, never a full look.
WITH RECURSIVE lanes (tenant, type, limit_key) AS (
    SELECT c.tenant, c.type, (
        SELECT min(limit_key) FROM states INDEXED BY states_ready
        WHERE status = 'queued' AND due = 1 AND type = c.type AND tenant = c.tenant
    )
    FROM counts AS c
    WHERE c.tenant = (SELECT number FROM tenants WHERE id = ?1) AND (?2 IS NULL OR c.type = ?2)
        AND c.status = 'queued' AND c.jobs > 0
    UNION ALL
    SELECT l.tenant, l.type, (
        SELECT min(limit_key) FROM states INDEXED BY states_ready
        WHERE status = 'queued' AND due = 1 AND type = l.type AND tenant = l.tenant AND limit_key > l.limit_key
    )
    FROM lanes AS l WHERE l.limit_key IS NOT NULL
)
SELECT min((
    SELECT min(run_at) FROM states INDEXED BY states_ready
    WHERE status = 'queued' AND due = 1 AND type = l.type AND tenant = l.tenant AND limit_key = l.limit_key
        AND priority = p.value
))
FROM lanes AS l CROSS JOIN json_each('[1, 2, 3, 4, 5]') AS p
WHERE l.limit_key IS NOT NULL
