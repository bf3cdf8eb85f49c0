-- What was uploaded for these attempts (a JSON array of the numbers and ids of jobs, and fences) and is done, in the order
-- in which it was.
SELECT CAST(json_group_array(json_array(
    w.value ->> 0, u.tenant, u.id, u.name, b.number, lower(hex(b.id)), b.size, u.content_type, u.owner, u.fence)
    ORDER BY u.done_at, u.id) AS BLOB)
FROM json_each(?1) AS w
CROSS JOIN uploads AS u INDEXED BY uploads_of_jobs ON u.job_id = w.value ->> 1 AND u.fence = w.value ->> 2
CROSS JOIN blobs AS b ON b.id = u.blob_id
WHERE u.job_id IS NOT NULL AND u.file = 'output' AND u.state = 'done'
