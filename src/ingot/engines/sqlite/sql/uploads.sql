-- Uploads: open, verifying, done or failed.

-- name: put_uploads
-- The row of VALUES is repeated for each upload.
INSERT INTO uploads (
    tenant, id, state, epoch, owner, reserved, received, size, blob_id, sha256, content_type, original_name, key, if_match,
    job_id, fence, file, name, place, multipart, error, created_at, expires_at, verifying_at, done_at,
    server, url_lifetime)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, id) DO UPDATE SET
    state = excluded.state, epoch = excluded.epoch, reserved = excluded.reserved, received = excluded.received,
    size = excluded.size, blob_id = excluded.blob_id, sha256 = excluded.sha256, place = excluded.place,
    multipart = excluded.multipart, error = excluded.error, expires_at = excluded.expires_at,
    verifying_at = excluded.verifying_at, done_at = excluded.done_at

-- name: uploads_by_id
-- Uploads by tenant number and ID (a JSON array of pairs).
SELECT CAST(json_group_array(json_array(
    t.id, u.id, u.state, u.epoch, u.owner, u.reserved, u.received, u.size,
    iif(u.blob_id IS NULL, NULL, lower(hex(u.blob_id))), iif(u.sha256 IS NULL, NULL, lower(hex(u.sha256))),
    u.content_type, u.original_name, u.key, u.if_match, u.job_id, u.fence, u.file, u.name, u.place, u.multipart, u.error,
    u.created_at, u.expires_at, u.verifying_at, u.done_at, u.server, u.url_lifetime)) AS BLOB)
FROM json_each(?1) AS item CROSS JOIN uploads AS u ON u.tenant = item.value ->> 0 AND u.id = item.value ->> 1
CROSS JOIN tenants AS t ON t.number = u.tenant

-- name: uploads_of_tenant
SELECT CAST(json_group_array(json_array(t.id, u.id)) AS BLOB)
FROM (SELECT tenant, id FROM uploads WHERE tenant = ?1 LIMIT ?2) AS u CROSS JOIN tenants AS t ON t.number = u.tenant

-- name: count_unfinished_uploads
-- The number of unfinished uploads of a tenant, up to ?2.
SELECT count(*) FROM (
    SELECT 1 FROM uploads INDEXED BY uploads_unfinished WHERE tenant = ?1 AND state IN ('open', 'verifying') LIMIT ?2
)

-- name: verifying_uploads
-- Uploads whose bytes must be read back, the longest waiting first.
SELECT CAST(json_group_array(json_array(
    t.id, u.id, u.state, u.epoch, u.owner, u.reserved, u.received, u.size,
    iif(u.blob_id IS NULL, NULL, lower(hex(u.blob_id))), iif(u.sha256 IS NULL, NULL, lower(hex(u.sha256))),
    u.content_type, u.original_name, u.key, u.if_match, u.job_id, u.fence, u.file, u.name, u.place, u.multipart, u.error,
    u.created_at, u.expires_at, u.verifying_at, u.done_at, u.server, u.url_lifetime)) AS BLOB)
FROM (
    SELECT * FROM uploads WHERE state = 'verifying' ORDER BY verifying_at LIMIT ?1
) AS u CROSS JOIN tenants AS t ON t.number = u.tenant

-- name: uploads_to_sweep
-- Uploads that have expired, and uploads of attempts that no longer run under their fence. Done uploads of an attempt
-- are kept as long as the attempt runs.
SELECT CAST(json_group_array(json_array(t.id, f.id)) AS BLOB)
FROM (
    SELECT tenant, id FROM (
        SELECT tenant, id FROM uploads INDEXED BY uploads_by_end
        WHERE expires_at <= ?1 AND (fence IS NULL OR state <> 'done') ORDER BY expires_at LIMIT ?2
    )
    UNION
    SELECT tenant, id FROM (
        SELECT u.tenant, u.id FROM uploads AS u INDEXED BY uploads_of_jobs
        WHERE u.job_id IS NOT NULL AND u.fence IS NOT NULL AND NOT EXISTS (
            SELECT 1 FROM states AS s
            WHERE s.id = u.job_id AND s.tenant = u.tenant AND s.status = 'running' AND s.fence = u.fence
        )
        LIMIT ?2
    )
    LIMIT ?2
) AS f CROSS JOIN tenants AS t ON t.number = f.tenant

-- name: uploads_of_other_servers
-- Up to ?2 unfinished uploads whose bytes went to another server than ?1 in one request.
SELECT CAST(json_group_array(json_array(t.id, u.id)) AS BLOB)
FROM (
    SELECT tenant, id FROM uploads INDEXED BY uploads_of_servers
    WHERE server IS NOT NULL AND state IN ('open', 'verifying') AND server <> ?1 LIMIT ?2
) AS u CROSS JOIN tenants AS t ON t.number = u.tenant

-- name: remove_uploads
DELETE FROM uploads WHERE (tenant, id) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?))
