-- Files of jobs: inputs, outputs and checkpoints.

-- name: set_input
-- Set the blob of an input whose upload is complete.
UPDATE jobs SET inputs = json_patch(inputs, json_object(?2, ?3)) WHERE number = ?1

-- name: input_uploads_of_jobs
-- Unfinished uploads of inputs of these jobs (a JSON array of IDs).
SELECT CAST(json_group_array(json_array(t.id, u.id)) AS BLOB)
FROM json_each(?1) AS item CROSS JOIN uploads AS u INDEXED BY uploads_of_jobs ON u.job_id = item.value
CROSS JOIN tenants AS t ON t.number = u.tenant
WHERE u.job_id IS NOT NULL AND u.file = 'input' AND u.state IN ('open', 'verifying')

-- name: names_of_awaited_inputs
-- The inputs that a job waits for.
SELECT CAST(json_group_array(u.name ORDER BY u.name) AS BLOB) FROM uploads AS u INDEXED BY uploads_of_jobs
WHERE u.job_id = ?1 AND u.job_id IS NOT NULL AND u.file = 'input' AND u.state IN ('open', 'verifying')

-- name: missing_inputs
-- The inputs of a job that were never uploaded.
SELECT CAST(json_group_array(input.key ORDER BY input.key) AS BLOB)
FROM jobs AS j, json_each(j.inputs) AS input WHERE j.number = ? AND input.type = 'null'

-- name: put_job_files
-- The row of VALUES is repeated for each file.
INSERT INTO job_files (tenant, job, kind, name, blob, content_type, owner, fence, since)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (job, kind, name) DO UPDATE SET
    blob = excluded.blob, content_type = excluded.content_type, owner = excluded.owner, fence = excluded.fence,
    since = excluded.since

-- name: file_of_job
-- One file of a job.
SELECT CAST(json_object(
    'kind', f.kind, 'name', f.name, 'blob_id', lower(hex(b.id)), 'sha256', lower(hex(b.sha256)), 'size', b.size,
    'content_type', f.content_type, 'since', f.since) AS BLOB)
FROM job_files AS f CROSS JOIN blobs AS b ON b.number = f.blob WHERE f.job = ?1 AND f.kind = ?2 AND f.name = ?3

-- name: files_by_name
-- The existing ones of these files (a JSON array of job numbers, kinds and names).
SELECT CAST(json_group_array(json_array(
    f.job, f.kind, f.name, f.owner, f.blob, lower(hex(b.id)), b.size)) AS BLOB)
FROM json_each(?1) AS item
CROSS JOIN job_files AS f ON f.job = item.value ->> 0 AND f.kind = item.value ->> 1 AND f.name = item.value ->> 2
CROSS JOIN blobs AS b ON b.number = f.blob

-- name: produced_files
-- The outputs and checkpoints of these jobs (a JSON array of numbers): job, owner, blob and size. Because of the `+`, a
-- job without files costs one index lookup instead of one for each kind.
SELECT CAST(json_group_array(json_array(f.job, f.owner, f.blob, b.size)) AS BLOB)
FROM json_each(?1) AS item CROSS JOIN job_files AS f ON f.job = item.value AND +f.kind IN ('output', 'checkpoint')
CROSS JOIN blobs AS b ON b.number = f.blob

-- name: files_of_job
-- The files of a job, by kind and name.
SELECT CAST(json_group_array(json_object(
    'kind', f.kind, 'name', f.name, 'blob_id', lower(hex(b.id)), 'sha256', lower(hex(b.sha256)), 'size', b.size,
    'content_type', f.content_type, 'since', f.since) ORDER BY f.kind, f.name) AS BLOB)
FROM job_files AS f CROSS JOIN blobs AS b ON b.number = f.blob WHERE f.job = ?1

-- name: files_of_jobs
-- The files of these jobs (a JSON array of numbers): tenant, owner, blob and size.
SELECT CAST(json_group_array(json_array(t.id, f.owner, f.blob, b.size)) AS BLOB)
FROM json_each(?1) AS item CROSS JOIN job_files AS f ON f.job = item.value
CROSS JOIN blobs AS b ON b.number = f.blob CROSS JOIN tenants AS t ON t.number = f.tenant

-- name: names_of_checkpoints
-- The names of the checkpoints of a job (number ?1, ID ?2), including those that the attempt with fence ?3 is
-- uploading.
SELECT CAST(json_group_array(c.name) AS BLOB)
FROM (
    SELECT f.name FROM job_files AS f WHERE f.job = ?1 AND f.kind = 'checkpoint'
    UNION
    SELECT u.name FROM uploads AS u INDEXED BY uploads_of_jobs
    WHERE u.job_id = ?2 AND u.job_id IS NOT NULL AND u.fence = ?3 AND u.file = 'checkpoint'
        AND u.state IN ('open', 'verifying')
) AS c

-- name: outputs_of_attempts
-- The finished uploads of outputs of these attempts (a JSON array of job numbers, job IDs and fences), in the order in
-- which they were finished.
SELECT CAST(json_group_array(json_array(
    item.value ->> 0, u.tenant, u.id, u.name, b.number, lower(hex(b.id)), b.size, u.content_type, u.owner, u.fence)
    ORDER BY u.done_at, u.id) AS BLOB)
FROM json_each(?1) AS item
CROSS JOIN uploads AS u INDEXED BY uploads_of_jobs ON u.job_id = item.value ->> 1 AND u.fence = item.value ->> 2
CROSS JOIN blobs AS b ON b.holder = u.tenant AND b.id = u.blob_id
WHERE u.job_id IS NOT NULL AND u.file = 'output' AND u.state = 'done'

-- name: count_outputs
-- The number of outputs that an attempt has begun to upload.
SELECT count(*) FROM uploads INDEXED BY uploads_of_jobs
WHERE job_id = ?1 AND job_id IS NOT NULL AND fence = ?2 AND file = 'output'

-- name: remove_finished_checkpoint_uploads
-- Remove finished uploads of a checkpoint by this attempt. Their blobs belong to the file of the job.
DELETE FROM uploads INDEXED BY uploads_of_jobs
WHERE job_id = ?1 AND job_id IS NOT NULL AND fence = ?2 AND file = 'checkpoint' AND name = ?3 AND state = 'done'

-- name: remove_produced_files
DELETE FROM job_files WHERE job IN (SELECT value FROM json_each(?)) AND kind IN ('output', 'checkpoint')

-- name: remove_job_files
DELETE FROM job_files WHERE job IN (SELECT value FROM json_each(?))
