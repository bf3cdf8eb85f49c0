-- The first n ready jobs of each of these lanes, given as [type, tenant, limit key].
SELECT CAST('[' || group_concat(places) || ']' AS BLOB) FROM (
    SELECT (
        SELECT json_group_array(json_array(priority, run_at, id, number)) FROM (
            SELECT priority, run_at, id, number FROM states INDEXED BY states_ready
            WHERE status = 'queued' AND due = 1 AND type = lane.value ->> 0 AND tenant = lane.value ->> 1
                AND limit_key = lane.value ->> 2
            ORDER BY priority, run_at, id
            LIMIT ?2
        )
    ) AS places
    FROM json_each(?1) AS lane ORDER BY lane.key
)
