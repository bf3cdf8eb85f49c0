-- One file of a job.
SELECT CAST(json_object(
    'kind', f.kind, 'name', f.name, 'blob_id', lower(hex(b.id)), 'sha256', lower(hex(b.sha256)), 'size', b.size,
    'content_type', f.content_type, 'since', f.since) AS BLOB)
FROM job_files AS f CROSS JOIN blobs AS b ON b.number = f.blob WHERE f.job = ?1 AND f.kind = ?2 AND f.name = ?3
