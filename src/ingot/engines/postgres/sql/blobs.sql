-- Keys, uploads and files of jobs.

-- name: get_key
-- A key of the current tenant.
SELECT k.key, k.blob, k.sha256, k.size, k.content_type, k.original_name, k.uploaded_at, k.owner
FROM ingot.keys AS k WHERE k.tenant = $1 AND k.key = $2

-- name: page_of_keys
-- Keys of the current tenant in order, from one key ($2) and after another ($3).
SELECT k.key, k.blob, k.sha256, k.size, k.content_type, k.original_name, k.uploaded_at, k.owner
FROM ingot.keys AS k WHERE k.tenant = $1 AND k.key >= $2 AND k.key > $3
ORDER BY k.key LIMIT $4

-- name: page_of_keys_below
-- Keys of the current tenant in order, from one key ($2), after another ($3) and below a third ($5).
SELECT k.key, k.blob, k.sha256, k.size, k.content_type, k.original_name, k.uploaded_at, k.owner
FROM ingot.keys AS k WHERE k.tenant = $1 AND k.key >= $2 AND k.key > $3 AND k.key < $5
ORDER BY k.key LIMIT $4

-- name: get_upload
-- An upload of the current tenant, as JSON.
SELECT row_to_json(u)::text FROM ingot.uploads AS u WHERE u.tenant = $1 AND u.id = $2

-- name: files_of_job
-- The files of a job, by kind and name; one row without a name if it has no files.
SELECT f.kind, f.name, f.blob, f.sha256, f.size, f.content_type, f.since
FROM ingot.jobs AS j LEFT JOIN ingot.job_files AS f ON f.job = j.id
WHERE j.id = $1 ORDER BY f.kind, f.name
