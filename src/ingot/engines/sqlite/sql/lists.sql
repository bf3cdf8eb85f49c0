-- Pages of jobs by filter, in the order of their numbers.

-- name: made_from_number
-- The first job from a number on, and when it was made.
SELECT number, created_at FROM jobs WHERE number >= ? ORDER BY number LIMIT 1

-- name: line_of_live
-- Numbers of a tenant's unfinished jobs of a type, newest first, below one number and not below another.
SELECT CAST(json_group_array(number) AS BLOB) FROM (
    SELECT number FROM states INDEXED BY states_live
    WHERE tenant = ? AND type = ? AND finished_at IS NULL AND number < ? AND number >= ?
    ORDER BY number DESC
    LIMIT ?
)

-- name: line_of_finished
-- Numbers of a tenant's finished jobs of a type and status, newest first, below one number and not below another.
SELECT CAST(json_group_array(number) AS BLOB) FROM (
    SELECT number FROM states INDEXED BY states_finished
    WHERE tenant = ? AND type = ? AND status = ? AND finished_at IS NOT NULL AND number < ? AND number >= ?
    ORDER BY number DESC
    LIMIT ?
)

-- name: line_of_source
-- Numbers of jobs from a rare source, of any tenant, newest first, below one number and not below another.
SELECT CAST(json_group_array(number) AS BLOB) FROM (
    SELECT number FROM jobs INDEXED BY jobs_by_source
    WHERE source = ? AND source <> 'manual' AND number < ? AND number >= ?
    ORDER BY number DESC
    LIMIT ?
)

-- name: line_of_tag
-- Numbers of a tenant's jobs that have a tag, newest first, below one number and not below another.
SELECT CAST(json_group_array(job) AS BLOB) FROM (
    SELECT job FROM tags INDEXED BY tags_by_tenant
    WHERE tenant = ? AND tag = ? AND job < ? AND job >= ?
    ORDER BY job DESC
    LIMIT ?
)

-- name: rows_of_source
-- How many jobs came from a rare source, counted so far and no further.
SELECT count(*) FROM (SELECT 1 FROM jobs INDEXED BY jobs_by_source WHERE source = ? AND source <> 'manual' LIMIT ?)

-- name: rows_of_tag
-- How many jobs of a tenant have a tag, counted so far and no further.
SELECT count(*) FROM (SELECT 1 FROM tags INDEXED BY tags_by_tenant WHERE tenant = ? AND tag = ? LIMIT ?)

-- name: tally_of_jobs
-- How many of these jobs (a JSON array of numbers) there are in each status.
SELECT CAST(json_group_object(status, jobs) AS BLOB) FROM (
    SELECT s.status, count(*) AS jobs FROM json_each(?) AS w CROSS JOIN states AS s ON s.number = w.value
    GROUP BY s.status
)
