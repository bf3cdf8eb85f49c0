-- Files of jobs: inputs, outputs and checkpoints.

-- name: add_input
-- An input of a job has come.
UPDATE jobs SET inputs = json_patch(inputs, json_object(?2, ?3)) WHERE number = ?1

-- name: open_inputs
-- Uploads under way of inputs of these jobs (a JSON array of ids).
SELECT CAST(json_group_array(json_array(t.id, u.id)) AS BLOB)
FROM json_each(?1) AS w CROSS JOIN uploads AS u INDEXED BY uploads_of_jobs ON u.job_id = w.value
CROSS JOIN tenants AS t ON t.number = u.tenant
WHERE u.job_id IS NOT NULL AND u.file = 'input' AND u.state IN ('open', 'verifying')

-- name: names_of_open_inputs
-- The inputs that a job waits for.
SELECT CAST(json_group_array(u.name ORDER BY u.name) AS BLOB) FROM uploads AS u INDEXED BY uploads_of_jobs
WHERE u.job_id = ?1 AND u.job_id IS NOT NULL AND u.file = 'input' AND u.state IN ('open', 'verifying')

-- name: missing_inputs
-- The inputs of a job that did not come.
SELECT CAST(json_group_array(e.key ORDER BY e.key) AS BLOB)
FROM jobs AS j, json_each(j.inputs) AS e WHERE j.number = ? AND e.type = 'null'

-- name: put_job_files
-- The row of VALUES is repeated.
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
-- Files of jobs (a JSON array of the numbers of jobs, kinds and names), as far as they are there.
SELECT CAST(json_group_array(json_array(f.job, f.kind, f.name, f.owner, f.blob, b.size)) AS BLOB)
FROM json_each(?1) AS w
CROSS JOIN job_files AS f ON f.job = w.value ->> 0 AND f.kind = w.value ->> 1 AND f.name = w.value ->> 2
CROSS JOIN blobs AS b ON b.number = f.blob

-- name: files_made
-- The outputs and checkpoints of these jobs (a JSON array of numbers): whose they are, their owners, blobs and sizes.
-- With the plus a job that has no files is looked up once, and not once for each kind.
SELECT CAST(json_group_array(json_array(f.job, f.owner, f.blob, b.size)) AS BLOB)
FROM json_each(?1) AS w CROSS JOIN job_files AS f ON f.job = w.value AND +f.kind IN ('output', 'checkpoint')
CROSS JOIN blobs AS b ON b.number = f.blob

-- name: files_of_job
-- The files of a job, by kind and name.
SELECT CAST(json_group_array(json_object(
    'kind', f.kind, 'name', f.name, 'blob_id', lower(hex(b.id)), 'sha256', lower(hex(b.sha256)), 'size', b.size,
    'content_type', f.content_type, 'since', f.since) ORDER BY f.kind, f.name) AS BLOB)
FROM job_files AS f CROSS JOIN blobs AS b ON b.number = f.blob WHERE f.job = ?1

-- name: files_of_jobs
-- The files of these jobs (a JSON array of numbers): their tenants, owners, blobs and sizes.
SELECT CAST(json_group_array(json_array(t.id, f.owner, f.blob, b.size)) AS BLOB)
FROM json_each(?1) AS w CROSS JOIN job_files AS f ON f.job = w.value
CROSS JOIN blobs AS b ON b.number = f.blob CROSS JOIN tenants AS t ON t.number = f.tenant

-- name: names_of_checkpoints
-- The names of the checkpoints of a job (?1 is its number, ?2 its id), with those that the attempt under a fence is sending.
SELECT CAST(json_group_array(c.name) AS BLOB)
FROM (
    SELECT f.name FROM job_files AS f WHERE f.job = ?1 AND f.kind = 'checkpoint'
    UNION
    SELECT u.name FROM uploads AS u INDEXED BY uploads_of_jobs
    WHERE u.job_id = ?2 AND u.job_id IS NOT NULL AND u.fence = ?3 AND u.file = 'checkpoint'
        AND u.state IN ('open', 'verifying')
) AS c

-- name: outputs_of_attempts
-- What was uploaded for these attempts (a JSON array of the numbers and ids of jobs, and fences) and is done, in the order
-- in which it was.
SELECT CAST(json_group_array(json_array(
    w.value ->> 0, u.tenant, u.id, u.name, b.number, lower(hex(b.id)), b.size, u.content_type, u.owner, u.fence)
    ORDER BY u.done_at, u.id) AS BLOB)
FROM json_each(?1) AS w
CROSS JOIN uploads AS u INDEXED BY uploads_of_jobs ON u.job_id = w.value ->> 1 AND u.fence = w.value ->> 2
CROSS JOIN blobs AS b ON b.id = u.blob_id
WHERE u.job_id IS NOT NULL AND u.file = 'output' AND u.state = 'done'

-- name: count_outputs
-- How many outputs of an attempt were begun.
SELECT count(*) FROM uploads INDEXED BY uploads_of_jobs
WHERE job_id = ?1 AND job_id IS NOT NULL AND fence = ?2 AND file = 'output'

-- name: forget_saved
-- Uploads of checkpoints with this name that an attempt has finished: they are files of the job.
DELETE FROM uploads INDEXED BY uploads_of_jobs
WHERE job_id = ?1 AND job_id IS NOT NULL AND fence = ?2 AND file = 'checkpoint' AND name = ?3 AND state = 'done'

-- name: remove_files_made
DELETE FROM job_files WHERE job IN (SELECT value FROM json_each(?)) AND kind IN ('output', 'checkpoint')

-- name: remove_job_files
DELETE FROM job_files WHERE job IN (SELECT value FROM json_each(?))
