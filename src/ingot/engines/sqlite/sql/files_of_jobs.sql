-- The files of these jobs (a JSON array of numbers): their tenants, owners, blobs and sizes.
SELECT CAST(json_group_array(json_array(t.id, f.owner, f.blob, b.size)) AS BLOB)
FROM json_each(?1) AS w CROSS JOIN job_files AS f ON f.job = w.value
CROSS JOIN blobs AS b ON b.number = f.blob CROSS JOIN tenants AS t ON t.number = f.tenant
