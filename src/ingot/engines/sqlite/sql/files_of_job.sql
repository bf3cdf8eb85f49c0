-- The files of a job, by kind and name.
SELECT CAST(json_group_array(json_object(
    'kind', f.kind, 'name', f.name, 'blob_id', lower(hex(b.id)), 'sha256', lower(hex(b.sha256)), 'size', b.size,
    'content_type', f.content_type, 'since', f.since) ORDER BY f.kind, f.name) AS BLOB)
FROM job_files AS f CROSS JOIN blobs AS b ON b.number = f.blob WHERE f.job = ?1
