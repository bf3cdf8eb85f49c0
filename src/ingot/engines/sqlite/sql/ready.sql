-- Work that is ready, and work that will be due.

-- name: live_lanes
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

-- name: next_due
SELECT min(run_at) FROM states INDEXED BY states_later WHERE status = 'queued' AND due = 0

-- name: promote_due
-- Work that has become due joins the ready work, the longest due first; answers the lanes it went to.
UPDATE states SET due = 1
WHERE number IN (
    SELECT number FROM states INDEXED BY states_later
    WHERE status = 'queued' AND due = 0 AND run_at <= ?
    ORDER BY run_at, number
    LIMIT ?
)
RETURNING type, (SELECT id FROM tenants WHERE number = tenant), limit_key

-- name: ready_in_lane
-- The first n ready jobs of one lane, in the order in which they are to start.
SELECT CAST(json_group_array(json_array(priority, run_at, id, number)) AS BLOB)
FROM (
    SELECT priority, run_at, id, number FROM states INDEXED BY states_ready
    WHERE status = 'queued' AND due = 1 AND type = ? AND tenant = ? AND limit_key = ?
    ORDER BY priority, run_at, id
    LIMIT ?
)

-- name: ready_in_lanes
-- The first n ready jobs of each of these lanes, given as [type, tenant, limit key].
SELECT CAST('[' || group_concat(places) || ']' AS BLOB) FROM (
    SELECT (
        SELECT json_group_array(json_array(priority, run_at, id, number)) FROM (
            SELECT priority, run_at, id, number FROM states INDEXED BY states_ready
            WHERE status = 'queued' AND due = 1 AND type = lane.value ->> 0 AND tenant = lane.value ->> 1
                AND limit_key = lane.value ->> 2
            ORDER BY priority, run_at, id
            LIMIT ?2
        )
    ) AS places
    FROM json_each(?1) AS lane ORDER BY lane.key
)

-- name: ready_ahead
-- How many ready jobs of its lane go before one, up to a bound.
SELECT count(*) FROM (
    SELECT 1 FROM states INDEXED BY states_ready
    WHERE status = 'queued' AND due = 1 AND type = ? AND tenant = ? AND limit_key = ?
        AND (priority, run_at, id) < (?, ?, ?)
    LIMIT ?
)

-- name: oldest_ready
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

-- name: oldest_ready_of_all
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
