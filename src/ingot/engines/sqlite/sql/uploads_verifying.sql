-- Uploads whose bytes are to be read back, those that wait for longest first.
SELECT CAST(json_group_array(json_array(
    t.id, u.id, u.state, u.epoch, u.owner, u.reserved, u.received, u.size,
    iif(u.blob_id IS NULL, NULL, lower(hex(u.blob_id))), iif(u.sha256 IS NULL, NULL, lower(hex(u.sha256))),
    u.content_type, u.original_name, u.key, u.if_match, u.job_id, u.fence, u.file, u.name, u.place, u.multipart, u.error,
    u.created_at, u.expires_at, u.verifying_at, u.done_at)) AS BLOB)
FROM (
    SELECT * FROM uploads WHERE state = 'verifying' ORDER BY verifying_at LIMIT ?1
) AS u CROSS JOIN tenants AS t ON t.number = u.tenant
