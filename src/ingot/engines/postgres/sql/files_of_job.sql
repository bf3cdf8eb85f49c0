-- The files of a job, by kind and name; a row without a name when it has none.
SELECT f.kind, f.name, f.blob, f.sha256, f.size, f.content_type, f.since
FROM ingot.jobs AS j LEFT JOIN ingot.job_files AS f ON f.job = j.id
WHERE j.id = $1 ORDER BY f.kind, f.name
