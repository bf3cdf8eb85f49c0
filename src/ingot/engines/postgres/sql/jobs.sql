-- Jobs, their attempts and logs.

-- name: get_job
-- One job of the tenant that is set.
SELECT * FROM ingot.job_rows WHERE id = $1

-- name: get_jobs
-- These jobs of the tenant that is set, in no order.
SELECT s.* FROM unnest($1::uuid[]) AS w (id) CROSS JOIN LATERAL (SELECT * FROM ingot.job_rows AS s WHERE s.id = w.id) AS s

-- name: page_of_jobs
-- Jobs of the tenant that is set, newest first.
-- The lines ($2) hold every job that fits, each in the order of ids, below one id ($3) and from another on ($4); some are
-- of one type ($5) or of one class of drift ($6). So many ($7) of each line are looked at. Where a line goes on, what
-- others have below its end is left for the next look. The order is that of the index of the line and of no other:
-- walking all jobs for those of one type must never seem good.
WITH lines AS MATERIALIZED (
    SELECT * FROM unnest($2::text[], $3::uuid[], $4::uuid[], $5::text[], $6::smallint[])
        WITH ORDINALITY AS l (kind, below, lowest, type, drift, line)
),
looked AS MATERIALIZED (
    SELECT l.line, j.id, row_number() OVER (PARTITION BY l.line ORDER BY j.id DESC) AS place
    FROM lines AS l CROSS JOIN LATERAL (
        (
            SELECT j.id FROM ingot.jobs AS j
            WHERE l.kind = 'type' AND j.tenant = $1 AND j.type = l.type
                AND j.id < l.below AND j.id >= l.lowest
            ORDER BY j.id DESC NULLS LAST LIMIT $7
        ) UNION ALL (
            SELECT j.id FROM ingot.jobs AS j
            WHERE l.kind = 'drift' AND j.tenant = $1 AND j.drift = l.drift AND j.drift IS NOT NULL
                AND j.id < l.below AND j.id >= l.lowest
            ORDER BY j.id DESC NULLS LAST LIMIT $7
        ) UNION ALL (
            SELECT j.id FROM ingot.jobs AS j
            WHERE l.kind = 'source' AND j.tenant = $1 AND j.source = $11 AND j.source <> 'manual'
                AND j.id < l.below AND j.id >= l.lowest
            ORDER BY j.id DESC NULLS LAST LIMIT $7
        ) UNION ALL (
            SELECT g.job FROM ingot.tags AS g
            WHERE l.kind = 'tag' AND g.tenant = $1 AND g.tag = $10
                AND g.job < l.below AND g.job >= l.lowest
            ORDER BY g.job DESC NULLS LAST LIMIT $7
        ) UNION ALL (
            SELECT w.id FROM ingot.later AS w
            WHERE l.kind = 'later' AND w.tenant = $1 AND w.type = l.type
                AND w.id < l.below AND w.id >= l.lowest
            ORDER BY w.id DESC NULLS LAST LIMIT $7
        ) UNION ALL (
            SELECT b.id FROM ingot.blocked AS b
            WHERE l.kind = 'blocked' AND b.tenant = $1 AND b.type = l.type
                AND b.id < l.below AND b.id >= l.lowest
            ORDER BY b.id DESC NULLS LAST LIMIT $7
        ) UNION ALL (
            SELECT c.id FROM ingot.canceled AS c
            WHERE l.kind = 'canceled' AND c.tenant = $1 AND c.type = l.type
                AND c.id < l.below AND c.id >= l.lowest
            ORDER BY c.id DESC NULLS LAST LIMIT $7
        ) UNION ALL (
            SELECT o.job FROM ingot.outcomes AS o
            WHERE l.kind = 'ended' AND o.tenant = $1 AND o.status_after = $8 AND o.status_after IN ('dead', 'canceled')
                AND o.job < l.below AND o.job >= l.lowest
            ORDER BY o.job DESC NULLS LAST LIMIT $7
        ) UNION ALL (
            -- Those of all tenants: there are only as many as run.
            SELECT s.id FROM ingot.leases AS s
            WHERE l.kind = 'leases' AND s.tenant = $1 AND s.id < l.below AND s.id >= l.lowest
            ORDER BY s.id DESC LIMIT $7
        ) UNION ALL (
            -- These two are not in order and are read to their end. They are only taken where there are few.
            SELECT r.id FROM (SELECT r.id FROM ingot.ready AS r WHERE r.type = l.type AND r.tenant = $1 OFFSET 0) AS r
            WHERE l.kind = 'ready' AND r.id < l.below AND r.id >= l.lowest
            ORDER BY r.id DESC LIMIT $7
        ) UNION ALL (
            SELECT f.job FROM ingot.endings AS e CROSS JOIN LATERAL unnest(e.jobs) AS f (job)
            WHERE l.kind = 'endings' AND e.tenant = $1 AND e.type = l.type AND f.job < l.below AND f.job >= l.lowest
            ORDER BY f.job DESC LIMIT $7
        )
    ) AS j
),
goes_on AS MATERIALIZED (SELECT k.id FROM looked AS k WHERE k.place = $7 ORDER BY k.id DESC LIMIT 1),
seen AS MATERIALIZED (
    SELECT DISTINCT k.id FROM looked AS k
    WHERE k.id >= coalesce((SELECT id FROM goes_on), '00000000-0000-0000-0000-000000000000')
)
SELECT (SELECT id::text FROM goes_on) AS goes_on,
    ARRAY(SELECT k.line::integer FROM looked AS k WHERE k.place = 1 ORDER BY k.id DESC) AS heads,
    ARRAY(SELECT k.id FROM looked AS k WHERE k.place = 1 ORDER BY k.id DESC) AS ids_of_heads,
    (SELECT count(*) FROM looked) AS looked,
    (SELECT id::text FROM seen ORDER BY id LIMIT 1) AS last, ARRAY(
    -- In order from the start, so that no more are asked about than are wanted; what costs most is asked last.
    SELECT k.id::text FROM (SELECT id FROM seen ORDER BY id DESC) AS k CROSS JOIN LATERAL (
        SELECT j.id, j.type, j.source, j.created_at FROM ingot.jobs AS j WHERE j.id = k.id LIMIT 1
    ) AS j
    WHERE ($9::text IS NULL OR j.type = $9)
        AND ($11::text IS NULL OR j.source = $11)
        AND ($12::bigint IS NULL OR j.created_at >= $12)
        AND ($13::bigint IS NULL OR j.created_at < $13)
        AND ($10::text IS NULL OR (SELECT true FROM ingot.tags AS g WHERE g.job = j.id AND g.tag = $10))
        AND ($8::text IS DISTINCT FROM 'succeeded' OR (
            SELECT o.status_after FROM ingot.outcomes AS o WHERE o.job = j.id ORDER BY o.fence DESC LIMIT 1
        ) = 'succeeded')
        AND ($8::text IS NULL OR (SELECT s.status FROM ingot.job_rows AS s WHERE s.id = j.id) = $8)
    ORDER BY k.id DESC LIMIT $14
) AS fit

-- name: rows_of_source
-- How many jobs of the tenant that is set came from a rare source, counted so far and no further.
SELECT count(*) FROM (
    SELECT FROM ingot.jobs AS j WHERE j.tenant = $1 AND j.source = $2 AND j.source <> 'manual'
    ORDER BY j.id NULLS FIRST LIMIT $3
) AS j

-- name: rows_of_tag
-- How many jobs of the tenant that is set have a tag, counted so far and no further.
SELECT count(*) FROM (
    SELECT FROM ingot.tags AS g WHERE g.tag = $2 AND g.tenant = $1 ORDER BY g.job NULLS FIRST LIMIT $3
) AS g

-- name: tally_of_jobs
-- How many of these jobs of the tenant that is set there are in each status. Each is looked up by itself: joined, all jobs
-- of the tenant could seem few enough to be read.
SELECT d.status, count(*) AS jobs FROM (
    SELECT (SELECT s.status FROM ingot.job_rows AS s WHERE s.id = w.id) AS status FROM unnest($1::uuid[]) AS w (id) OFFSET 0
) AS d
WHERE d.status IS NOT NULL
GROUP BY d.status

-- name: counts_of_tenant
-- The jobs of the tenant that is set, by type and status: what was folded and what was not yet, in one snapshot.
SELECT d.type, d.status, sum(d.jobs)::bigint AS jobs FROM (
    SELECT type, status, jobs FROM ingot.counts WHERE tenant = $1
    UNION ALL
    SELECT type, status, jobs FROM ingot.count_deltas WHERE tenant = $1
) AS d
GROUP BY d.type, d.status
HAVING sum(d.jobs) > 0
ORDER BY d.type COLLATE "C"

-- name: summary_of_tenant
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

-- name: get_batch
-- A batch of the tenant that is set, in numbers.
SELECT total, succeeded, dead, canceled FROM ingot.sums_of_batch($1, $2)

-- name: attempts_of_job
-- The attempts of a job of the tenant that is set, oldest first, as JSON.
SELECT json_build_object(
    'job_id', a.job, 'number', a.number, 'fence', a.fence, 'worker_id', a.worker_id, 'host', a.host, 'pid', a.pid,
    'started_at', a.started_at, 'outcome', a.outcome, 'status_after', a.status_after, 'finished_at', a.finished_at,
    'exit_code', a.exit_code, 'error', a.error,
    'progress', CASE
        WHEN a.percent IS NOT NULL THEN json_build_object('percent', a.percent, 'stage', coalesce(a.stage, ''))
    END)::text
FROM ingot.attempts AS a
WHERE a.job = $1
ORDER BY a.fence

-- name: log_of_attempt
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
