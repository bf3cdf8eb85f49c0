-- Batches of events, dedupe keys, and the position up to which old events were removed.

-- name: last_event_batch
-- The newest batch of all tenants. The subquery uses the index once per tenant.
SELECT coalesce(max((SELECT max(batch) FROM events WHERE tenant = t.number)), 0) FROM tenants AS t

-- name: entries_of_batch
SELECT entries FROM events WHERE tenant = ? AND batch = ?

-- name: insert_events
INSERT INTO events (tenant, batch, at, entries) VALUES (?, ?, ?, ?)

-- name: event_batches
-- Batches of a tenant from ?2 on. Every batch has at least one event, so n batches are enough for n events.
SELECT batch, at, entries FROM events
WHERE tenant = (SELECT number FROM tenants WHERE id = ?) AND batch >= ?
ORDER BY batch
LIMIT ?

-- name: newest_event_batch
-- The newest batch of a tenant.
SELECT batch, entries FROM events
WHERE tenant = (SELECT number FROM tenants WHERE id = ?)
ORDER BY batch DESC
LIMIT 1

-- name: oldest_event_batches
SELECT json_group_array(json_array(batch, at)) FROM (
    SELECT batch, at FROM events WHERE tenant = ? ORDER BY batch LIMIT ?
)

-- name: tenants_with_old_events
-- Tenants whose oldest batch is at most as new as the cutoff and is not their newest batch.
SELECT json_group_array(number) FROM tenants
WHERE (SELECT at FROM events WHERE tenant = tenants.number ORDER BY batch LIMIT 1) <= ?
    AND (SELECT min(batch) FROM events WHERE tenant = tenants.number)
        < (SELECT max(batch) FROM events WHERE tenant = tenants.number)

-- name: remove_events
DELETE FROM events WHERE tenant = ? AND batch <= ?

-- name: clear_events
DELETE FROM events WHERE (tenant, batch) IN (SELECT tenant, batch FROM events WHERE tenant = ?1 LIMIT ?2)

-- name: event_of_dedupe_key
SELECT digest, batch, place FROM event_keys WHERE tenant = ? AND key = ? AND at > ?

-- name: put_event_keys
INSERT OR REPLACE INTO event_keys (tenant, key, digest, batch, place, at) VALUES (?, ?, ?, ?, ?, ?)

-- name: remove_event_keys
-- Remove dedupe keys that have expired, up to a limit.
DELETE FROM event_keys WHERE (tenant, key) IN (
    SELECT tenant, key FROM event_keys WHERE at <= ? ORDER BY at LIMIT ?
)

-- name: clear_event_keys
DELETE FROM event_keys WHERE (tenant, key) IN (SELECT tenant, key FROM event_keys WHERE tenant = ?1 LIMIT ?2)

-- name: event_floor
SELECT batch, place FROM event_floors WHERE tenant = (SELECT number FROM tenants WHERE id = ?)

-- name: put_event_floor
INSERT OR REPLACE INTO event_floors (tenant, batch, place) VALUES (?, ?, ?)

-- name: clear_event_floors
DELETE FROM event_floors WHERE tenant IN (SELECT tenant FROM event_floors WHERE tenant = ?1 LIMIT ?2)
