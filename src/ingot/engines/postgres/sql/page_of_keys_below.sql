-- Keys of the tenant that is set, in order: from one on ($2), behind another ($3), and below a third ($5).
SELECT k.key, k.blob, k.sha256, k.size, k.content_type, k.original_name, k.uploaded_at, k.owner
FROM ingot.keys AS k WHERE k.tenant = $1 AND k.key >= $2 AND k.key > $3 AND k.key < $5
ORDER BY k.key LIMIT $4
