-- Logs of attempts.

-- name: logged_attempt
-- The attempt with this number of a job of a tenant, or the newest one for NULL. Every job has an attempt 0, which
-- never started.
SELECT CAST(json_array(s.number, s.id, coalesce(a.number, 0), coalesce(a.fence, 0),
    json(iif(s.status = 'running' AND s.fence = a.fence, 'true', 'false')), s.attempts, s.status) AS BLOB)
FROM states AS s LEFT JOIN attempts AS a ON a.job = s.number AND (?3 IS NULL OR a.number = ?3)
WHERE s.id = ?1 AND s.tenant = (SELECT number FROM tenants WHERE id = ?2)
    AND (?3 IS NULL OR ?3 = 0 OR a.number IS NOT NULL)
ORDER BY a.fence DESC LIMIT 1

-- name: ends_of_logs
-- The ends of the logs of these attempts (a JSON array of job numbers and fences).
SELECT CAST(json_group_array(json_array(item.value ->> 0, item.value ->> 1, coalesce((
    SELECT start + size FROM logs WHERE job = item.value ->> 0 AND fence = item.value ->> 1 ORDER BY start DESC LIMIT 1
), 0))) AS BLOB)
FROM json_each(?) AS item

-- name: insert_logs
INSERT INTO logs (job, fence, start, size, text) VALUES (?, ?, ?, ?, ?)

-- name: trim_logs
-- Delete the chunks that end at or before ?3 in the log of an attempt.
DELETE FROM logs WHERE job = ?1 AND fence = ?2 AND start < ?3 AND start + size <= ?3

-- name: chunks_of_log
-- The chunks of the log of an attempt, beginning with the one that contains position ?3.
SELECT CAST(json_group_array(json_array(start, text)) AS BLOB) FROM (
    SELECT start, text FROM logs
    WHERE job = ?1 AND fence = ?2
        AND start >= coalesce((SELECT max(start) FROM logs WHERE job = ?1 AND fence = ?2 AND start <= ?3), 0)
    ORDER BY start
)

-- name: remove_logs
DELETE FROM logs WHERE job IN (SELECT value FROM json_each(?))
