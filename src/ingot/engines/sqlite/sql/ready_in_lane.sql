-- The first n ready jobs of one lane, in the order in which they are to start.
SELECT CAST(json_group_array(json_array(priority, run_at, id, number)) AS BLOB)
FROM (
    SELECT priority, run_at, id, number FROM states INDEXED BY states_ready
    WHERE status = 'queued' AND due = 1 AND type = ? AND tenant = ? AND limit_key = ?
    ORDER BY priority, run_at, id
    LIMIT ?
)
