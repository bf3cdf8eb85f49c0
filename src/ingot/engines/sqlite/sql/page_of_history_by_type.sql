-- Up to n entries of a tenant's history of one type, last finished first, below one position.
SELECT CAST(json_group_array(json_array(id, type, status, attempts, created_at, finished_at, last_error)) AS BLOB)
FROM (
    SELECT * FROM history
    WHERE tenant = ?1 AND type = ?5 AND (finished_at, id) < (?2, ?3)
    ORDER BY finished_at DESC, id DESC
    LIMIT ?4
)
