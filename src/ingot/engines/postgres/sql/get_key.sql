-- A key of the tenant that is set.
SELECT k.key, k.blob, k.sha256, k.size, k.content_type, k.original_name, k.uploaded_at, k.owner
FROM ingot.keys AS k WHERE k.tenant = $1 AND k.key = $2
