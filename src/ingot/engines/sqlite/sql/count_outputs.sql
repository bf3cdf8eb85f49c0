-- How many outputs of an attempt were begun.
SELECT count(*) FROM uploads INDEXED BY uploads_of_jobs
WHERE job_id = ?1 AND job_id IS NOT NULL AND fence = ?2 AND file = 'output'
