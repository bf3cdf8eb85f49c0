-- The jobs of the tenant that is set, by status (what was folded and what was not yet, in one snapshot), when the longest
-- waiting ready one became due, and the time now.
SELECT
    (
        SELECT json_object_agg(c.status, c.jobs) FROM (
            SELECT d.status, sum(d.jobs) AS jobs FROM (
                SELECT status, jobs FROM ingot.counts UNION ALL SELECT status, jobs FROM ingot.count_deltas
            ) AS d GROUP BY d.status
        ) AS c
    )::text AS counts,
    (SELECT min(run_at) FROM ingot.ready) AS oldest,
    ingot.clock() AS now
