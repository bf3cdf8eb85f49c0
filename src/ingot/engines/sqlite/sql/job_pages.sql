-- Index scans for pages of jobs, in the order of job numbers.

-- name: first_job_from_number
-- The first job with this number or a higher one, and when it was created.
SELECT number, created_at FROM jobs WHERE number >= ? ORDER BY number LIMIT 1

-- name: unfinished_job_numbers_of_tenant
-- The numbers of a tenant's unfinished jobs, newest first, below ?2 and not below ?3.
SELECT CAST(json_group_array(number) AS BLOB) FROM (
    SELECT number FROM states INDEXED BY states_live_of_tenant
    WHERE tenant = ? AND finished_at IS NULL AND number < ? AND number >= ?
    ORDER BY number DESC
    LIMIT ?
)

-- name: finished_job_numbers_of_tenant
-- The numbers of a tenant's finished jobs of a status, newest first, below ?3 and not below ?4.
SELECT CAST(json_group_array(number) AS BLOB) FROM (
    SELECT number FROM states INDEXED BY states_finished_of_tenant
    WHERE tenant = ? AND status = ? AND finished_at IS NOT NULL AND number < ? AND number >= ?
    ORDER BY number DESC
    LIMIT ?
)

-- name: unfinished_job_numbers
-- The numbers of a tenant's unfinished jobs of a type, newest first, below ?3 and not below ?4.
SELECT CAST(json_group_array(number) AS BLOB) FROM (
    SELECT number FROM states INDEXED BY states_live
    WHERE tenant = ? AND type = ? AND finished_at IS NULL AND number < ? AND number >= ?
    ORDER BY number DESC
    LIMIT ?
)

-- name: finished_job_numbers
-- The numbers of a tenant's finished jobs of a status and type, newest first, below ?4 and not below ?5.
SELECT CAST(json_group_array(number) AS BLOB) FROM (
    SELECT number FROM states INDEXED BY states_finished
    WHERE tenant = ? AND status = ? AND type = ? AND finished_at IS NOT NULL AND number < ? AND number >= ?
    ORDER BY number DESC
    LIMIT ?
)

-- name: job_numbers_of_source
-- The numbers of jobs of all tenants from a rare source, newest first, below ?2 and not below ?3.
SELECT CAST(json_group_array(number) AS BLOB) FROM (
    SELECT number FROM jobs INDEXED BY jobs_by_source
    WHERE source = ? AND source <> 'manual' AND number < ? AND number >= ?
    ORDER BY number DESC
    LIMIT ?
)

-- name: job_numbers_of_tag
-- The numbers of a tenant's jobs with a tag, newest first, below ?3 and not below ?4.
SELECT CAST(json_group_array(job) AS BLOB) FROM (
    SELECT job FROM tags INDEXED BY tags_by_tenant
    WHERE tenant = ? AND tag = ? AND job < ? AND job >= ?
    ORDER BY job DESC
    LIMIT ?
)

-- name: count_jobs_of_source
-- The number of jobs from a rare source, counted up to the limit.
SELECT count(*) FROM (SELECT 1 FROM jobs INDEXED BY jobs_by_source WHERE source = ? AND source <> 'manual' LIMIT ?)

-- name: count_jobs_of_tag
-- The number of jobs of a tenant with a tag, counted up to the limit.
SELECT count(*) FROM (SELECT 1 FROM tags INDEXED BY tags_by_tenant WHERE tenant = ? AND tag = ? LIMIT ?)

-- name: count_jobs_by_status
-- The number of these jobs (a JSON array of numbers) in each status.
SELECT CAST(json_group_object(status, jobs) AS BLOB) FROM (
    SELECT s.status, count(*) AS jobs FROM json_each(?) AS item CROSS JOIN states AS s ON s.number = item.value
    GROUP BY s.status
)
