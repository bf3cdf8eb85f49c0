-- The inputs that a job waits for.
SELECT CAST(json_group_array(u.name ORDER BY u.name) AS BLOB) FROM uploads AS u INDEXED BY uploads_of_jobs
WHERE u.job_id = ?1 AND u.job_id IS NOT NULL AND u.file = 'input' AND u.state IN ('open', 'verifying')
