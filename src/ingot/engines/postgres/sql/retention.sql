-- Finished jobs that are due for removal, and the history of removed ones.

-- name: preview_retention
-- The jobs of the current tenant that retention would remove, by type: how many of at most $2 examined jobs are due, when
-- the first of them finished, and how many were examined.
SELECT k.type, d.jobs, d.oldest, d.examined
FROM ingot.retention_cutoffs($1) AS k CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE s.finished_at <= k.cutoff) AS jobs,
        min(s.finished_at) FILTER (WHERE s.finished_at <= k.cutoff) AS oldest, max(n.place) AS examined
    FROM (
        SELECT DISTINCT ON (n.id) n.id, n.place FROM (
            SELECT j.id, row_number() OVER (ORDER BY e.finished_at) AS place
            FROM ingot.endings AS e CROSS JOIN unnest(e.jobs) AS j (id)
            WHERE e.tenant = $1 AND e.type = k.type AND e.finished_at <= k.cutoff
            LIMIT $2 + 1
        ) AS n
        ORDER BY n.id, n.place DESC
    ) AS n
    LEFT JOIN LATERAL (
        -- OFFSET 0 keeps this a lookup by id. As a join, it read all jobs of the tenant for every candidate.
        SELECT s.finished_at FROM ingot.job_rows AS s WHERE s.id = n.id AND n.place <= $2 OFFSET 0
    ) AS s ON true
) AS d
WHERE d.jobs > 0
ORDER BY k.type

-- name: page_of_history
-- History entries of the current tenant below a position, as JSON, last finished first.
SELECT row_to_json(h)::text
FROM ingot.history AS h
WHERE h.tenant = $1 AND (h.finished_at, h.id) < ($2, $3)
ORDER BY h.finished_at DESC, h.id DESC
LIMIT $4

-- name: page_of_history_by_type
-- History entries of the current tenant of one type below a position, as JSON, last finished first.
SELECT row_to_json(h)::text
FROM ingot.history AS h
WHERE h.tenant = $1 AND h.type = $5 AND (h.finished_at, h.id) < ($2, $3)
ORDER BY h.finished_at DESC, h.id DESC
LIMIT $4
