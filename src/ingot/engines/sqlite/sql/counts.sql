-- Counters of jobs and batches.

-- name: add_counts
-- Counters are exact: they change in the transaction that changes the jobs. Rows with type '' count all types. The row
-- of VALUES is repeated.
INSERT INTO counts (tenant, type, status, jobs) VALUES (?, ?, ?, ?)
ON CONFLICT (tenant, type, status) DO UPDATE SET jobs = jobs + excluded.jobs

-- name: remove_types
-- Remove the counters of those of these types (a JSON array of [tenant number, type]) that have no jobs, and return them.
DELETE FROM counts WHERE (tenant, type) IN (
    SELECT item.value ->> 0, item.value ->> 1 FROM json_each(?) AS item
    WHERE NOT EXISTS (
        SELECT 1 FROM counts AS c
        WHERE c.tenant = item.value ->> 0 AND c.type = item.value ->> 1 AND c.jobs <> 0
    )
)
RETURNING tenant, type

-- name: counts_by_status
-- The jobs of a tenant of one type, or of all if the type is '', by status.
SELECT CAST(json_group_object(status, jobs) AS BLOB) FROM counts WHERE tenant = ? AND type = ? AND jobs > 0

-- name: counts_by_type
SELECT CAST(json_group_array(json_array(type, status, jobs) ORDER BY type) AS BLOB)
FROM counts WHERE tenant = ? AND type > '' AND jobs > 0

-- name: types_of_tenants
-- The types of which each tenant has jobs.
SELECT CAST(json_group_array(json_array(t.id, json(c.types))) AS BLOB)
FROM (SELECT tenant, json_group_array(DISTINCT type) AS types FROM counts WHERE type > '' GROUP BY tenant) AS c
CROSS JOIN tenants AS t ON t.number = c.tenant

-- name: unfinished_counts
-- The unfinished jobs of these types (a JSON array of [tenant number, type], where '' counts all types), by status.
SELECT CAST(json_group_array(json_array(t.id, c.type, c.status, c.jobs)) AS BLOB)
FROM json_each(?) AS item
    CROSS JOIN tenants AS t ON t.number = item.value ->> 0
    CROSS JOIN counts AS c ON c.tenant = t.number AND c.type = item.value ->> 1
        AND c.status IN ('blocked', 'queued', 'running') AND c.jobs > 0

-- name: queue_depths
-- The jobs of all tenants by status: each of the oldest tenants separately, the others together under a NULL name.
SELECT CAST(json_group_array(json_array((SELECT slug FROM tenants WHERE number = d.tenant), json(d.counts))) AS BLOB)
FROM (
    SELECT tenant, json_group_object(status, jobs) AS counts
    FROM (
        SELECT CASE WHEN c.tenant <= l.last THEN c.tenant END AS tenant, c.status, sum(c.jobs) AS jobs
        FROM (SELECT max(number) AS last FROM (SELECT number FROM tenants ORDER BY number LIMIT ?)) AS l
        CROSS JOIN tenants AS t
        CROSS JOIN counts AS c ON c.tenant = t.number
        WHERE c.type = '' AND t.removed_at IS NULL
        GROUP BY 1, c.status
    )
    GROUP BY tenant
) AS d

-- name: clear_counts
DELETE FROM counts WHERE (tenant, type, status) IN (SELECT tenant, type, status FROM counts WHERE tenant = ?1 LIMIT ?2)

-- name: add_batches
-- Batches are counted in the transaction that changes their jobs. The row of VALUES is repeated for each batch.
INSERT INTO batches (tenant, batch, total, succeeded, dead, canceled) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, batch) DO UPDATE SET
    total = total + excluded.total, succeeded = succeeded + excluded.succeeded, dead = dead + excluded.dead,
    canceled = canceled + excluded.canceled

-- name: batch_of_tenant
-- The counters of one batch.
SELECT CAST(json_object(
    'batch', batch, 'total', total, 'unfinished', total - succeeded - dead - canceled, 'succeeded', succeeded,
    'dead', dead, 'canceled', canceled) AS BLOB)
FROM batches WHERE tenant = (SELECT number FROM tenants WHERE id = ?) AND batch = ?

-- name: completed_batches
-- Those of these batches (a JSON array of tenant numbers and names) that have no unfinished jobs, with their tenants.
SELECT CAST(json_group_array(json_array(t.id, json_object(
    'batch', b.batch, 'total', b.total, 'unfinished', 0, 'succeeded', b.succeeded, 'dead', b.dead, 'canceled', b.canceled
))) AS BLOB)
FROM json_each(?) AS item
CROSS JOIN batches AS b ON b.tenant = item.value ->> 0 AND b.batch = item.value ->> 1
CROSS JOIN tenants AS t ON t.number = b.tenant
WHERE b.total = b.succeeded + b.dead + b.canceled

-- name: clear_batches
DELETE FROM batches WHERE (tenant, batch) IN (SELECT tenant, batch FROM batches WHERE tenant = ?1 LIMIT ?2)
