-- The names of the checkpoints of a job (?1 is its number, ?2 its id), with those that the attempt under a fence is sending.
SELECT CAST(json_group_array(c.name) AS BLOB)
FROM (
    SELECT f.name FROM job_files AS f WHERE f.job = ?1 AND f.kind = 'checkpoint'
    UNION
    SELECT u.name FROM uploads AS u INDEXED BY uploads_of_jobs
    WHERE u.job_id = ?2 AND u.job_id IS NOT NULL AND u.fence = ?3 AND u.file = 'checkpoint'
        AND u.state IN ('open', 'verifying')
) AS c
