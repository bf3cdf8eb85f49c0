-- Finished jobs to remove, and the history that remains.

-- name: retention_rules
-- The tenants and types with finished jobs whose retention is limited: tenant, type, retention in seconds, and whether
-- history entries are kept. For one tenant (?1, its number) or for all (NULL). The recursion jumps from type to type in
-- the index.
WITH RECURSIVE kinds (tenant, type) AS (
    SELECT * FROM (
        SELECT tenant, type FROM endings INDEXED BY endings_in_order
        WHERE tenant BETWEEN coalesce(?1, 0) AND coalesce(?1, 0x7fffffffffffffff) AND (
            EXISTS (SELECT 1 FROM definitions WHERE definition ->> 'retention_seconds' IS NOT NULL)
            OR EXISTS (SELECT 1 FROM tenants WHERE limits ->> 'retention_seconds' IS NOT NULL)
        )
        ORDER BY tenant, type LIMIT 1
    )
    UNION ALL
    SELECT n.tenant, n.type
    FROM kinds AS k CROSS JOIN endings AS n ON n.batch = coalesce(
        (
            SELECT batch FROM endings INDEXED BY endings_in_order
            WHERE tenant = k.tenant AND type > k.type
            ORDER BY type LIMIT 1
        ),
        (
            SELECT batch FROM endings INDEXED BY endings_in_order
            WHERE tenant > k.tenant AND ?1 IS NULL
            ORDER BY tenant, type LIMIT 1
        )
    )
)
SELECT CAST(json_group_array(json_array(id, number, type, seconds, json(iif(keeps, 'true', 'false')))) AS BLOB)
FROM (
    SELECT t.id, t.number, k.type, d.definition ->> 'keep_history' AS keeps,
        coalesce(d.definition ->> 'retention_seconds', t.limits ->> 'retention_seconds') AS seconds
    FROM kinds AS k CROSS JOIN tenants AS t ON t.number = k.tenant
    LEFT JOIN definitions AS d ON d.type = k.type AND d.tenant = (
        SELECT max(o.tenant) FROM definitions AS o WHERE o.tenant IN ('', t.id) AND o.type = k.type
    )
)
WHERE seconds IS NOT NULL

-- name: insert_endings
INSERT INTO endings (tenant, type, finished_at, size, jobs) VALUES (?, ?, ?, ?, ?)

-- name: endings_before
-- The oldest endings of a tenant and type up to the cutoff, and how many jobs each lists.
SELECT CAST(json_group_array(json_array(batch, size)) AS BLOB)
FROM (
    SELECT batch, size FROM endings INDEXED BY endings_in_order
    WHERE tenant = ? AND type = ? AND finished_at <= ?
    ORDER BY finished_at, batch
    LIMIT ?
)

-- name: jobs_of_endings
-- The job numbers that these endings (a JSON array) list.
SELECT CAST(json_group_object(e.batch, json(e.jobs)) AS BLOB)
FROM json_each(?) AS item CROSS JOIN endings AS e ON e.batch = item.value

-- name: jobs_finished_before
-- Those of these jobs (a JSON array of numbers) that belong to the tenant and type and finished at or before the
-- cutoff.
SELECT CAST(json_group_array(json_array(number, status, finished_at)) AS BLOB)
FROM (
    SELECT DISTINCT s.number, s.status, s.finished_at
    FROM json_each(?) AS item CROSS JOIN states AS s ON s.number = item.value
    WHERE s.tenant = ? AND s.type = ? AND s.finished_at <= ?
)

-- name: shorten_ending
UPDATE endings SET jobs = ?, size = ? WHERE batch = ?

-- name: remove_endings
DELETE FROM endings WHERE batch IN (SELECT value FROM json_each(?))

-- name: clear_endings
DELETE FROM endings WHERE batch IN (SELECT batch FROM endings WHERE tenant = ?1 LIMIT ?2)

-- name: insert_history
-- Insert history entries for these jobs (a JSON array of numbers).
INSERT OR REPLACE INTO history (tenant, finished_at, id, type, status, attempts, created_at, last_error)
SELECT s.tenant, s.finished_at, s.id, s.type, s.status, s.attempts, j.created_at, iif(s.failures + s.crashes > 0, substr((
    SELECT o.error FROM outcomes AS o
    WHERE o.job = s.number AND o.error IS NOT NULL ORDER BY o.fence DESC LIMIT 1), 1, ?), NULL)
FROM json_each(?) AS item CROSS JOIN states AS s ON s.number = item.value CROSS JOIN jobs AS j ON j.number = s.number

-- name: page_of_history
-- History entries of a tenant before a position, last finished first.
SELECT CAST(json_group_array(json_object(
    'id', id, 'tenant', (SELECT t.id FROM tenants AS t WHERE t.number = ?1), 'type', type, 'status', status,
    'attempts', attempts, 'created_at', created_at, 'finished_at', finished_at, 'last_error', last_error)) AS BLOB)
FROM (
    SELECT * FROM history
    WHERE tenant = ?1 AND (finished_at, id) < (?2, ?3)
    ORDER BY finished_at DESC, id DESC
    LIMIT ?4
)

-- name: page_of_history_by_type
-- History entries of one type of a tenant before a position, last finished first.
SELECT CAST(json_group_array(json_object(
    'id', id, 'tenant', (SELECT t.id FROM tenants AS t WHERE t.number = ?1), 'type', type, 'status', status,
    'attempts', attempts, 'created_at', created_at, 'finished_at', finished_at, 'last_error', last_error)) AS BLOB)
FROM (
    SELECT * FROM history
    WHERE tenant = ?1 AND type = ?5 AND (finished_at, id) < (?2, ?3)
    ORDER BY finished_at DESC, id DESC
    LIMIT ?4
)

-- name: clear_history
DELETE FROM history WHERE (tenant, finished_at, id) IN (SELECT tenant, finished_at, id FROM history WHERE tenant = ?1 LIMIT ?2)
