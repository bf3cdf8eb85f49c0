-- Numbers of jobs from a rare source, of any tenant, newest first, below one number and not below another.
SELECT CAST(json_group_array(number) AS BLOB) FROM (
    SELECT number FROM jobs INDEXED BY jobs_by_source
    WHERE source = ? AND source <> 'manual' AND number < ? AND number >= ?
    ORDER BY number DESC
    LIMIT ?
)
