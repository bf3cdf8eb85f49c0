-- Keys: names of blobs.

-- name: put_keys
-- The row of VALUES is repeated for each key.
INSERT INTO keys (tenant, key, blob, content_type, original_name, owner, uploaded_at, upload)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, key) DO UPDATE SET
    blob = excluded.blob, content_type = excluded.content_type, original_name = excluded.original_name,
    owner = excluded.owner, uploaded_at = excluded.uploaded_at, upload = excluded.upload

-- name: keys_by_name
-- Keys by tenant number and name (a JSON array of pairs).
SELECT CAST(json_group_array(json_array(
    t.id, k.key, k.blob, lower(hex(b.id)), lower(hex(b.sha256)), b.size, k.content_type, k.original_name, k.owner,
    k.uploaded_at, k.upload)) AS BLOB)
FROM json_each(?1) AS item CROSS JOIN keys AS k ON k.tenant = item.value ->> 0 AND k.key = item.value ->> 1
CROSS JOIN blobs AS b ON b.number = k.blob CROSS JOIN tenants AS t ON t.number = k.tenant

-- name: page_of_keys
-- Keys of a tenant from ?2 up to, but not including, ?3, in the order of their bytes.
SELECT CAST(json_group_array(json_array(
    t.id, k.key, k.blob, lower(hex(b.id)), lower(hex(b.sha256)), b.size, k.content_type, k.original_name, k.owner,
    k.uploaded_at, k.upload)) AS BLOB)
FROM (
    SELECT * FROM keys WHERE tenant = ?1 AND key >= ?2 AND key < ?3 ORDER BY key LIMIT ?4
) AS k CROSS JOIN blobs AS b ON b.number = k.blob CROSS JOIN tenants AS t ON t.number = k.tenant

-- name: keys_of_owner
SELECT CAST(json_group_array(key) AS BLOB) FROM (SELECT key FROM keys WHERE tenant = ?1 AND owner = ?2 LIMIT ?3)

-- name: keys_of_tenant
SELECT CAST(json_group_array(key) AS BLOB) FROM (SELECT key FROM keys WHERE tenant = ?1 LIMIT ?2)

-- name: blobs_of_keys
-- The blobs of the first keys of a tenant, one for each key.
SELECT CAST(json_group_array(blob) AS BLOB) FROM (SELECT blob FROM keys WHERE tenant = ?1 ORDER BY key LIMIT ?2)

-- name: remove_keys
DELETE FROM keys WHERE (tenant, key) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?))

-- name: clear_keys
DELETE FROM keys WHERE (tenant, key) IN (SELECT tenant, key FROM keys WHERE tenant = ?1 ORDER BY key LIMIT ?2)
