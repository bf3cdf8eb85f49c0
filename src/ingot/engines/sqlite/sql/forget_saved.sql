-- Uploads of checkpoints with this name that an attempt has finished: they are files of the job.
DELETE FROM uploads INDEXED BY uploads_of_jobs
WHERE job_id = ?1 AND job_id IS NOT NULL AND fence = ?2 AND file = 'checkpoint' AND name = ?3 AND state = 'done'
