-- The row of VALUES is repeated.
INSERT INTO uploads (
    tenant, id, state, epoch, owner, reserved, received, size, blob_id, sha256, content_type, original_name, key, if_match,
    job_id, fence, file, name, place, multipart, error, created_at, expires_at, verifying_at, done_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, id) DO UPDATE SET
    state = excluded.state, epoch = excluded.epoch, reserved = excluded.reserved, received = excluded.received,
    size = excluded.size, blob_id = excluded.blob_id, sha256 = excluded.sha256, place = excluded.place,
    multipart = excluded.multipart, error = excluded.error, expires_at = excluded.expires_at,
    verifying_at = excluded.verifying_at, done_at = excluded.done_at
