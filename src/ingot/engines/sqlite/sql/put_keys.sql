-- The row of VALUES is repeated.
INSERT INTO keys (tenant, key, blob, content_type, original_name, owner, uploaded_at, upload)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, key) DO UPDATE SET
    blob = excluded.blob, content_type = excluded.content_type, original_name = excluded.original_name,
    owner = excluded.owner, uploaded_at = excluded.uploaded_at, upload = excluded.upload
