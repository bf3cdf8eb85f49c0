-- Keys, by the numbers of their tenants and their names (a JSON array of pairs).
SELECT CAST(json_group_array(json_array(
    t.id, k.key, k.blob, lower(hex(b.id)), lower(hex(b.sha256)), b.size, k.content_type, k.original_name, k.owner,
    k.uploaded_at, k.upload)) AS BLOB)
FROM json_each(?1) AS w CROSS JOIN keys AS k ON k.tenant = w.value ->> 0 AND k.key = w.value ->> 1
CROSS JOIN blobs AS b ON b.number = k.blob CROSS JOIN tenants AS t ON t.number = k.tenant
