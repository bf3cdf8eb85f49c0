-- An attempt of a job of the tenant that is set, that with a number ($2) or the newest, and the parts of its log, from that
-- which holds a place ($3) on. Every job has an attempt with the number 0, which never began.
SELECT s.id::text AS job_id, s.status, s.attempts, coalesce(a.number, 0) AS number, coalesce(a.fence, 0) AS fence,
    coalesce(s.status = 'running' AND s.fence = a.fence, false) AS live, g.starts, g.texts
FROM ingot.job_rows AS s
LEFT JOIN LATERAL (
    SELECT a.number, a.fence FROM ingot.attempts AS a
    WHERE a.job = s.id AND ($2::bigint IS NULL OR a.number = $2)
    ORDER BY a.fence DESC LIMIT 1
) AS a ON true
CROSS JOIN LATERAL (
    SELECT array_agg(g.start ORDER BY g.start) AS starts, array_agg(g.text ORDER BY g.start) AS texts
    FROM ingot.logs AS g
    WHERE g.job = s.id AND g.fence = a.fence AND g.start >= coalesce((
        SELECT b.start FROM ingot.logs AS b
        WHERE b.job = s.id AND b.fence = a.fence AND b.start <= $3 ORDER BY b.start DESC LIMIT 1
    ), 0)
) AS g
WHERE s.id = $1 AND ($2 IS NULL OR a.number = $2 OR $2 = 0)
