-- When the longest waiting ready job of every tenant became due, of those that `depths` does not name together: the head
-- of every lane and priority, of so many lanes. The first lanes of all tenants and types come before the second of any.
WITH RECURSIVE lanes (tenant, type, limit_key) AS (
    SELECT c.tenant, c.type, (
        SELECT min(limit_key) FROM states INDEXED BY states_ready
        WHERE status = 'queued' AND due = 1 AND type = c.type AND tenant = c.tenant
    )
    FROM counts AS c
    WHERE c.status = 'queued' AND c.jobs > 0
        AND c.tenant NOT IN (SELECT number FROM tenants WHERE removed_at IS NOT NULL)
    UNION ALL
    SELECT l.tenant, l.type, (
        SELECT min(limit_key) FROM states INDEXED BY states_ready
        WHERE status = 'queued' AND due = 1 AND type = l.type AND tenant = l.tenant AND limit_key > l.limit_key
    )
    FROM lanes AS l WHERE l.limit_key IS NOT NULL
    LIMIT ?2
)
SELECT CAST(json_group_array(json_array((SELECT slug FROM tenants WHERE number = o.tenant), o.oldest)) AS BLOB)
FROM (
    SELECT CASE WHEN l.tenant <= (SELECT max(number) FROM (SELECT number FROM tenants ORDER BY number LIMIT ?1))
            THEN l.tenant END AS tenant,
        min((
            SELECT min(run_at) FROM states INDEXED BY states_ready
            WHERE status = 'queued' AND due = 1 AND type = l.type AND tenant = l.tenant AND limit_key = l.limit_key
                AND priority = p.value
        )) AS oldest
    FROM lanes AS l CROSS JOIN json_each('[1, 2, 3, 4, 5]') AS p
    WHERE l.limit_key IS NOT NULL
    GROUP BY 1
) AS o
