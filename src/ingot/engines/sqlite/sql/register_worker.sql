-- Keep a worker, or what it says of itself now: it is online, and drains no more.
INSERT INTO workers (tenant, id, types, hostname, version, metadata, registered_at, registered_by, seen_at, online, draining)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?7, 1, 0)
ON CONFLICT (tenant, id) DO UPDATE SET
    types = excluded.types, hostname = excluded.hostname, version = excluded.version, metadata = excluded.metadata,
    registered_at = excluded.registered_at, registered_by = excluded.registered_by, seen_at = excluded.seen_at,
    online = 1, draining = 0
