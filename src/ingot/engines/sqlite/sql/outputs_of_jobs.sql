-- The outputs of these jobs (a JSON array of numbers): whose they are, their owners, blobs and sizes.
SELECT CAST(json_group_array(json_array(f.job, f.owner, f.blob, b.size)) AS BLOB)
FROM json_each(?1) AS w CROSS JOIN job_files AS f ON f.job = w.value AND f.kind = 'output'
CROSS JOIN blobs AS b ON b.number = f.blob
