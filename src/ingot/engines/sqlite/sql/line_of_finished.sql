-- Numbers of a tenant's finished jobs of a type and status, newest first, below one number and not below another.
SELECT CAST(json_group_array(number) AS BLOB) FROM (
    SELECT number FROM states INDEXED BY states_finished
    WHERE tenant = ? AND type = ? AND status = ? AND finished_at IS NOT NULL AND number < ? AND number >= ?
    ORDER BY number DESC
    LIMIT ?
)
