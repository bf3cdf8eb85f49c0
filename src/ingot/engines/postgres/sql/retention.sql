-- Finished jobs that are to go, and the history that stays.

-- name: preview_retention
-- What collections would remove of the jobs of the tenant that is set, by type: how many of a bounded number that were
-- named are due, when the first of them finished, and how many were named.
SELECT k.type, d.jobs, d.oldest, d.named
FROM ingot.keeping($1) AS k CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE s.finished_at <= k.cutoff) AS jobs,
        min(s.finished_at) FILTER (WHERE s.finished_at <= k.cutoff) AS oldest, max(n.place) AS named
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
        -- OFFSET 0 keeps this a lookup by id. Joined, it read all jobs of the tenant for every job that was named.
        SELECT s.finished_at FROM ingot.job_rows AS s WHERE s.id = n.id AND n.place <= $2 OFFSET 0
    ) AS s ON true
) AS d
WHERE d.jobs > 0
ORDER BY k.type

-- name: page_of_history
-- Entries of the history of the tenant that is set, as JSON, last finished first, below one position.
SELECT row_to_json(h)::text
FROM ingot.history AS h
WHERE h.tenant = $1 AND (h.finished_at, h.id) < ($2, $3)
ORDER BY h.finished_at DESC, h.id DESC
LIMIT $4

-- name: page_of_history_by_type
-- Entries of the history of the tenant that is set, of one type, as JSON, last finished first, below one position.
SELECT row_to_json(h)::text
FROM ingot.history AS h
WHERE h.tenant = $1 AND h.type = $5 AND (h.finished_at, h.id) < ($2, $3)
ORDER BY h.finished_at DESC, h.id DESC
LIMIT $4
