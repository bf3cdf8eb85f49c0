-- The jobs of the tenant that is set, by status (what was folded and what was not yet, in one snapshot), when the longest
-- waiting ready one became due (the head of every type and priority, never a full look), and the time now.
WITH counted AS MATERIALIZED (
    SELECT d.type, d.status, sum(d.jobs) AS jobs FROM (
        SELECT type, status, jobs FROM ingot.counts WHERE tenant = $1
        UNION ALL
        SELECT type, status, jobs FROM ingot.count_deltas WHERE tenant = $1
    ) AS d GROUP BY d.type, d.status
)
SELECT
    (
        SELECT json_object_agg(c.status, c.jobs) FROM (SELECT status, sum(jobs) AS jobs FROM counted GROUP BY status) AS c
    )::text AS counts,
    (
        SELECT min(r.run_at) FROM counted AS c CROSS JOIN generate_series(1, 5) AS p (priority) CROSS JOIN LATERAL (
            SELECT r.run_at FROM ingot.ready AS r
            WHERE r.type = c.type AND r.tenant = $1 AND r.limit_key = '' AND r.priority = p.priority
            ORDER BY r.run_at LIMIT 1
        ) AS r
        WHERE c.status = 'queued' AND c.jobs > 0
    ) AS oldest,
    ingot.clock() AS now
