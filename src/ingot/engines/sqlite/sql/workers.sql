-- Registered workers.

-- name: register_worker
-- Store a worker, or replace what it reported before. It is online and not draining.
INSERT INTO workers (tenant, id, types, hostname, version, metadata, registered_at, registered_by, seen_at, online, draining,
    protocol)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?7, 1, 0, ?9)
ON CONFLICT (tenant, id) DO UPDATE SET
    types = excluded.types, hostname = excluded.hostname, version = excluded.version, metadata = excluded.metadata,
    registered_at = excluded.registered_at, registered_by = excluded.registered_by, seen_at = excluded.seen_at,
    online = 1, draining = 0, protocol = excluded.protocol

-- name: worker_by_id
-- One worker. It is disabled if its credential, in the same tenant, is disabled.
SELECT CAST(json_object(
    'id', w.id, 'tenant', (SELECT t.id FROM tenants AS t WHERE t.number = w.tenant), 'types', json(w.types),
    'hostname', w.hostname, 'version', w.version, 'protocol', w.protocol, 'metadata', CAST(w.metadata AS TEXT),
    'registered_at', w.registered_at, 'registered_by', w.registered_by, 'seen_at', w.seen_at,
    'online', json(iif(w.online, 'true', 'false')), 'draining', json(iif(w.draining, 'true', 'false')),
    'disabled', json(iif(EXISTS (
        SELECT 1 FROM worker_credentials AS c
        WHERE c.id = substr(w.id, 1, instr(w.id || '/', '/') - 1) AND coalesce(c.tenant, 0) = w.tenant AND c.enabled = 0
    ), 'true', 'false'))) AS BLOB)
FROM workers AS w WHERE w.tenant = ?1 AND w.id = ?2

-- name: workers_of_tenant
-- Workers of a tenant, or the shared ones (0), after an ID, in order.
SELECT CAST(json_group_array(json_object(
    'id', w.id, 'tenant', (SELECT t.id FROM tenants AS t WHERE t.number = w.tenant), 'types', json(w.types),
    'hostname', w.hostname, 'version', w.version, 'protocol', w.protocol, 'metadata', CAST(w.metadata AS TEXT),
    'registered_at', w.registered_at, 'registered_by', w.registered_by, 'seen_at', w.seen_at,
    'online', json(iif(w.online, 'true', 'false')), 'draining', json(iif(w.draining, 'true', 'false')),
    'disabled', json(iif(EXISTS (
        SELECT 1 FROM worker_credentials AS c
        WHERE c.id = substr(w.id, 1, instr(w.id || '/', '/') - 1) AND coalesce(c.tenant, 0) = w.tenant AND c.enabled = 0
    ), 'true', 'false')))) AS BLOB)
FROM (
    SELECT * FROM workers WHERE tenant = ?1 AND id > ?2 ORDER BY id LIMIT ?3
) AS w

-- name: workers_of_type
-- Up to ?4 workers that run jobs of the type ?2, last seen first: those of the tenant ?1 and the shared ones, or (?3)
-- those of other tenants.
SELECT CAST(json_group_array(json_object(
    'id', w.id, 'tenant', (SELECT t.id FROM tenants AS t WHERE t.number = w.tenant), 'types', json(w.types),
    'hostname', w.hostname, 'version', w.version, 'metadata', CAST(w.metadata AS TEXT),
    'registered_at', w.registered_at, 'registered_by', w.registered_by, 'seen_at', w.seen_at,
    'online', json(iif(w.online, 'true', 'false')), 'draining', json(iif(w.draining, 'true', 'false')),
    'disabled', json(iif(EXISTS (
        SELECT 1 FROM worker_credentials AS c
        WHERE c.id = substr(w.id, 1, instr(w.id || '/', '/') - 1) AND coalesce(c.tenant, 0) = w.tenant AND c.enabled = 0
    ), 'true', 'false')))) AS BLOB)
FROM (
    SELECT * FROM workers AS w
    WHERE iif(?3, tenant NOT IN (?1, 0), tenant IN (?1, 0))
        AND EXISTS (SELECT 1 FROM json_each(w.types) AS item WHERE item.value = ?2)
    ORDER BY online DESC, seen_at DESC LIMIT ?4
) AS w

-- name: record_worker_seen
UPDATE workers SET seen_at = ?3, online = 1 WHERE tenant = ?1 AND id = ?2

-- name: drain_worker
UPDATE workers SET draining = 1 WHERE tenant = ?1 AND id = ?2 AND draining = 0

-- name: draining_workers
SELECT CAST(json_group_array(json_array((SELECT t.id FROM tenants AS t WHERE t.number = w.tenant), w.id)) AS BLOB)
FROM workers AS w INDEXED BY workers_draining WHERE w.draining = 1

-- name: count_workers
-- The number of workers of all tenants for each combination of what their status depends on. Those that were last seen at
-- or before the time in the parameter are silent.
SELECT CAST(json_group_array(json_object(
    'online', json(iif(online, 'true', 'false')), 'silent', json(iif(silent, 'true', 'false')),
    'draining', json(iif(draining, 'true', 'false')), 'disabled', json(iif(disabled, 'true', 'false')),
    'workers', workers)) AS BLOB)
FROM (
    SELECT w.online, w.seen_at <= ? AS silent, w.draining, (w.tenant, substr(w.id, 1, instr(w.id || '/', '/') - 1)) IN (
        SELECT coalesce(c.tenant, 0), c.id FROM worker_credentials AS c WHERE c.enabled = 0
    ) AS disabled, count(*) AS workers
    FROM workers AS w GROUP BY 1, 2, 3, 4
)

-- name: silent_workers
-- Online workers that were last seen at or before the cutoff, the longest silent first: tenant number, tenant ID, and
-- the data of their event.
SELECT CAST(json_group_array(json_array(
    w.tenant, (SELECT t.id FROM tenants AS t WHERE t.number = w.tenant), json_object(
        'id', w.id, 'status', 'offline', 'types', json(w.types), 'hostname', w.hostname, 'version', w.version))) AS BLOB)
FROM (
    SELECT * FROM workers WHERE online = 1 AND seen_at <= ?1 ORDER BY seen_at LIMIT ?2
) AS w

-- name: mark_workers_offline
-- Mark these workers (a JSON array of [tenant number, ID]) as offline.
UPDATE workers SET online = 0
FROM (SELECT value ->> 0 AS tenant, value ->> 1 AS id FROM json_each(?)) AS silent
WHERE workers.tenant = silent.tenant AND workers.id = silent.id

-- name: remove_offline_workers
-- Remove workers that are offline and were last seen at or before the cutoff, up to a limit.
DELETE FROM workers WHERE (tenant, id) IN (
    SELECT tenant, id FROM workers WHERE online = 0 AND seen_at <= ?1 ORDER BY seen_at LIMIT ?2
)
RETURNING 1

-- name: remove_worker
DELETE FROM workers WHERE tenant = ?1 AND id = ?2

-- name: clear_workers
DELETE FROM workers WHERE (tenant, id) IN (SELECT tenant, id FROM workers WHERE tenant = ?1 LIMIT ?2)
