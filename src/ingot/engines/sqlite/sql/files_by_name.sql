-- Files of jobs (a JSON array of the numbers of jobs, kinds and names), as far as they are there.
SELECT CAST(json_group_array(json_array(f.job, f.kind, f.name, f.owner, f.blob, b.size)) AS BLOB)
FROM json_each(?1) AS w
CROSS JOIN job_files AS f ON f.job = w.value ->> 0 AND f.kind = w.value ->> 1 AND f.name = w.value ->> 2
CROSS JOIN blobs AS b ON b.number = f.blob
