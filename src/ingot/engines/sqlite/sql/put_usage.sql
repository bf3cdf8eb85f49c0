-- The row of VALUES is repeated.
INSERT INTO usage (tenant, owner, bytes, reserved, keys, key_bytes) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, owner) DO UPDATE SET
    bytes = excluded.bytes, reserved = excluded.reserved, keys = excluded.keys, key_bytes = excluded.key_bytes
