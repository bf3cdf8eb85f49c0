-- Numbers of a tenant's unfinished jobs of a type, newest first, below one number and not below another.
SELECT CAST(json_group_array(number) AS BLOB) FROM (
    SELECT number FROM states INDEXED BY states_live
    WHERE tenant = ? AND type = ? AND finished_at IS NULL AND number < ? AND number >= ?
    ORDER BY number DESC
    LIMIT ?
)
