-- Ready jobs, and jobs that become due later.

-- name: live_lanes
-- The lanes that have ready jobs. The recursion jumps from lane to lane in the index and never reads all of it. It
-- makes one jump for each column of the lane, because a comparison of whole rows would only use the first column.
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
-- Make jobs ready that have become due, the longest due first, and return their lanes.
UPDATE states SET due = 1
WHERE number IN (
    SELECT number FROM states INDEXED BY states_later
    WHERE status = 'queued' AND due = 0 AND run_at <= ?
    ORDER BY run_at, number
    LIMIT ?
)
RETURNING type, (SELECT id FROM tenants WHERE number = tenant), limit_key

-- name: ready_in_lane
-- The first ready jobs of one lane, in the order in which they start.
SELECT CAST(json_group_array(json_array(priority, run_at, id, number)) AS BLOB)
FROM (
    SELECT priority, run_at, id, number FROM states INDEXED BY states_ready
    WHERE status = 'queued' AND due = 1 AND type = ? AND tenant = ? AND limit_key = ?
    ORDER BY priority, run_at, id
    LIMIT ?
)

-- name: ready_in_lanes
-- The first ?2 ready jobs of each of these lanes (a JSON array of [type, tenant number, limit key]).
SELECT CAST('[' || group_concat(positions) || ']' AS BLOB) FROM (
    SELECT (
        SELECT json_group_array(json_array(priority, run_at, id, number)) FROM (
            SELECT priority, run_at, id, number FROM states INDEXED BY states_ready
            WHERE status = 'queued' AND due = 1 AND type = lane.value ->> 0 AND tenant = lane.value ->> 1
                AND limit_key = lane.value ->> 2
            ORDER BY priority, run_at, id
            LIMIT ?2
        )
    ) AS positions
    FROM json_each(?1) AS lane ORDER BY lane.key
)

-- name: count_ready_before
-- The number of ready jobs of a lane before this position, counted up to a limit.
SELECT count(*) FROM (
    SELECT 1 FROM states INDEXED BY states_ready
    WHERE status = 'queued' AND due = 1 AND type = ? AND tenant = ? AND limit_key = ?
        AND (priority, run_at, id) < (?, ?, ?)
    LIMIT ?
)

-- name: oldest_ready
-- When the ready job of a tenant that has waited longest became due, of one type or of all (NULL). Reads the first job
-- of every lane and priority, for up to ?3 counters and lanes, and the ?3 oldest unfinished jobs. No job becomes due
-- before it is created, so the result is exact unless a tenant has more of all three.
WITH RECURSIVE lanes (type, limit_key) AS (
    SELECT c.type, (
        SELECT min(limit_key) FROM states INDEXED BY states_ready
        WHERE status = 'queued' AND due = 1 AND type = c.type AND tenant = ?1
    )
    FROM (
        SELECT type, status, jobs FROM counts
        WHERE tenant = ?1 AND type BETWEEN coalesce(?2, '!') AND coalesce(?2, '~') LIMIT ?3
    ) AS c
    WHERE c.status = 'queued' AND c.jobs > 0
    UNION ALL
    SELECT l.type, (
        SELECT min(limit_key) FROM states INDEXED BY states_ready
        WHERE status = 'queued' AND due = 1 AND type = l.type AND tenant = ?1 AND limit_key > l.limit_key
    )
    FROM lanes AS l WHERE l.limit_key IS NOT NULL
    LIMIT ?3
)
SELECT min(run_at) FROM (
    SELECT (
        SELECT min(run_at) FROM states INDEXED BY states_ready
        WHERE status = 'queued' AND due = 1 AND type = l.type AND tenant = ?1 AND limit_key = l.limit_key
            AND priority = p.value
    ) AS run_at
    FROM lanes AS l CROSS JOIN json_each('[1, 2, 3, 4, 5]') AS p
    WHERE l.limit_key IS NOT NULL
    UNION ALL
    SELECT iif(status = 'queued' AND due = 1, run_at, NULL) FROM (
        SELECT status, due, run_at FROM states INDEXED BY states_live_of_tenant
        WHERE tenant = ?1 AND finished_at IS NULL AND ?2 IS NULL
        ORDER BY number LIMIT ?3
    )
)

-- name: oldest_ready_by_tenant
-- When the ready jobs that have waited longest became due, by tenant; tenants that `queue_depths` combines are combined
-- here too. Reads the first job of every lane and priority, for up to ?2 lanes. The first lanes of all tenants and
-- types come before the second lane of any.
WITH RECURSIVE lanes (tenant, type, limit_key) AS (
    SELECT c.tenant, c.type, (
        SELECT min(limit_key) FROM states INDEXED BY states_ready
        WHERE status = 'queued' AND due = 1 AND type = c.type AND tenant = c.tenant
    )
    FROM counts AS c
    WHERE c.type > '' AND c.status = 'queued' AND c.jobs > 0
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
