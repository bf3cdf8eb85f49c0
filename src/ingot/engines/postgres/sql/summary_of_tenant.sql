-- The jobs of the tenant that is set, perhaps of one type ($2), by status (what was folded and what was not yet, in one snapshot), when the longest
-- waiting ready one became due (the head of every lane and priority, never a full look), and the time now.
WITH RECURSIVE counted AS MATERIALIZED (
    SELECT d.type, d.status, sum(d.jobs) AS jobs FROM (
        SELECT type, status, jobs FROM ingot.counts WHERE tenant = $1 AND ($2::text IS NULL OR type = $2)
        UNION ALL
        SELECT type, status, jobs FROM ingot.count_deltas WHERE tenant = $1 AND ($2::text IS NULL OR type = $2)
    ) AS d GROUP BY d.type, d.status
),
lanes AS (
    SELECT c.type, (
        SELECT r.limit_key FROM ingot.ready AS r WHERE r.type = c.type AND r.tenant = $1 ORDER BY r.limit_key LIMIT 1
    ) AS limit_key
    FROM counted AS c WHERE c.status = 'queued' AND c.jobs > 0
    UNION ALL
    SELECT l.type, (
        SELECT r.limit_key FROM ingot.ready AS r
        WHERE r.type = l.type AND r.tenant = $1 AND r.limit_key > l.limit_key ORDER BY r.limit_key LIMIT 1
    )
    FROM lanes AS l WHERE l.limit_key IS NOT NULL
)
SELECT
    (
        SELECT json_object_agg(c.status, c.jobs) FROM (SELECT status, sum(jobs) AS jobs FROM counted GROUP BY status) AS c
    )::text AS counts,
    (
        SELECT min(r.run_at) FROM lanes AS l CROSS JOIN generate_series(1, 5) AS p (priority) CROSS JOIN LATERAL (
            SELECT r.run_at FROM ingot.ready AS r
            WHERE r.type = l.type AND r.tenant = $1 AND r.limit_key = l.limit_key AND r.priority = p.priority
            ORDER BY r.run_at LIMIT 1
        ) AS r
    ) AS oldest,
    ingot.clock() AS now
