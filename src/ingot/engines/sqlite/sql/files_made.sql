-- The outputs and checkpoints of these jobs (a JSON array of numbers): whose they are, their owners, blobs and sizes.
-- With the plus a job that has no files is looked up once, and not once for each kind.
SELECT CAST(json_group_array(json_array(f.job, f.owner, f.blob, b.size)) AS BLOB)
FROM json_each(?1) AS w CROSS JOIN job_files AS f ON f.job = w.value AND +f.kind IN ('output', 'checkpoint')
CROSS JOIN blobs AS b ON b.number = f.blob
