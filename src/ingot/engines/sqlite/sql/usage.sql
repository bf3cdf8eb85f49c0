-- Storage usage of tenants and owners.

-- name: put_usage
-- The row of VALUES is repeated for each owner.
INSERT INTO usage (tenant, owner, bytes, reserved, keys, key_bytes, deleted) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, owner) DO UPDATE SET
    bytes = excluded.bytes, reserved = excluded.reserved, keys = excluded.keys, key_bytes = excluded.key_bytes,
    deleted = excluded.deleted

-- name: usage_of_owner
SELECT bytes, reserved, keys, key_bytes, deleted FROM usage WHERE tenant = ?1 AND owner = ?2

-- name: remove_usage
DELETE FROM usage WHERE (tenant, owner) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?))

-- name: clear_usage
DELETE FROM usage WHERE (tenant, owner) IN (SELECT tenant, owner FROM usage WHERE tenant = ?1 LIMIT ?2)
