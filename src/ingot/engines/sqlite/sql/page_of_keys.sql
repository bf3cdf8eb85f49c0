-- Keys of a tenant from one text up to another, in the order of their bytes.
SELECT CAST(json_group_array(json_array(
    t.id, k.key, k.blob, lower(hex(b.id)), lower(hex(b.sha256)), b.size, k.content_type, k.original_name, k.owner,
    k.uploaded_at, k.upload)) AS BLOB)
FROM (
    SELECT * FROM keys WHERE tenant = ?1 AND key >= ?2 AND key < ?3 ORDER BY key LIMIT ?4
) AS k CROSS JOIN blobs AS b ON b.number = k.blob CROSS JOIN tenants AS t ON t.number = k.tenant
