-- Which of these numbers (a JSON array) are those of a tenant's jobs that fit a filter, newest first.
SELECT CAST(json_group_array(s.number ORDER BY s.number DESC) AS BLOB)
FROM json_each(?1) AS w CROSS JOIN states AS s ON s.number = w.value
WHERE s.tenant = ?2
    AND (?3 IS NULL OR s.status = ?3)
    AND (?4 IS NULL OR s.type = ?4)
    AND (?5 IS NULL OR EXISTS (SELECT 1 FROM tags AS g WHERE g.job = s.number AND g.tag = ?5))
    AND (?6 IS NULL OR (SELECT j.source FROM jobs AS j WHERE j.number = s.number) = ?6)
    AND (?7 IS NULL OR (SELECT j.created_at FROM jobs AS j WHERE j.number = s.number) >= ?7)
    AND (?8 IS NULL OR (SELECT j.created_at FROM jobs AS j WHERE j.number = s.number) < ?8)
