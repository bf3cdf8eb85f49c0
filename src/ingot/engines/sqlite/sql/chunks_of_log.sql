-- The parts of the log of an attempt, from that which holds a place on.
SELECT CAST(json_group_array(json_array(start, text)) AS BLOB) FROM (
    SELECT start, text FROM logs
    WHERE job = ?1 AND fence = ?2
        AND start >= coalesce((SELECT max(start) FROM logs WHERE job = ?1 AND fence = ?2 AND start <= ?3), 0)
    ORDER BY start
)
