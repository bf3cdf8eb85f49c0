-- Jobs, their attempts and logs.

-- name: get_job
-- One job of the current tenant.
SELECT * FROM ingot.job_rows WHERE id = $1

-- name: get_jobs
-- These jobs of the current tenant, in no order.
SELECT s.* FROM unnest($1::uuid[]) AS w (id) CROSS JOIN LATERAL (SELECT * FROM ingot.job_rows AS s WHERE s.id = w.id) AS s

-- name: page_of_jobs
-- Jobs of the current tenant that match a filter, newest first.
-- Index scans ($2) contain every match, each in the order of ids, below one id ($3) and from another one ($4); some are
-- limited to a type ($5) or a class of drift ($6). At most $7 rows of each scan are examined. If a scan is cut off there,
-- rows of other scans below its end are left for the next query. Each ORDER BY matches the index of its scan and no other,
-- so that the planner never walks all jobs to find those of one type.
WITH scans AS MATERIALIZED (
    SELECT * FROM unnest($2::text[], $3::uuid[], $4::uuid[], $5::text[], $6::smallint[])
        WITH ORDINALITY AS s (kind, below, lowest, type, drift, scan)
),
examined AS MATERIALIZED (
    SELECT s.scan, j.id, row_number() OVER (PARTITION BY s.scan ORDER BY j.id DESC) AS place
    FROM scans AS s CROSS JOIN LATERAL (
        (
            -- The condition on the depth selects the index.
            SELECT j.id FROM ingot.jobs AS j
            WHERE s.kind = 'tenant' AND j.tenant = $1 AND j.depth >= 0
                AND j.id < s.below AND j.id >= s.lowest
            ORDER BY j.id DESC NULLS LAST LIMIT $7
        ) UNION ALL (
            SELECT j.id FROM ingot.jobs AS j
            WHERE s.kind = 'type' AND j.tenant = $1 AND j.type = s.type
                AND j.id < s.below AND j.id >= s.lowest
            ORDER BY j.id DESC NULLS LAST LIMIT $7
        ) UNION ALL (
            SELECT j.id FROM ingot.jobs AS j
            WHERE s.kind = 'drift' AND j.tenant = $1 AND j.drift = s.drift AND j.drift IS NOT NULL
                AND j.id < s.below AND j.id >= s.lowest
            ORDER BY j.id DESC NULLS LAST LIMIT $7
        ) UNION ALL (
            SELECT j.id FROM ingot.jobs AS j
            WHERE s.kind = 'source' AND j.tenant = $1 AND j.source = $11 AND j.source <> 'manual'
                AND j.id < s.below AND j.id >= s.lowest
            ORDER BY j.id DESC NULLS LAST LIMIT $7
        ) UNION ALL (
            SELECT g.job FROM ingot.tags AS g
            WHERE s.kind = 'tag' AND g.tenant = $1 AND g.tag = $10
                AND g.job < s.below AND g.job >= s.lowest
            ORDER BY g.job DESC NULLS LAST LIMIT $7
        ) UNION ALL (
            SELECT w.id FROM ingot.later AS w
            WHERE s.kind = 'later' AND w.tenant = $1 AND w.type = s.type
                AND w.id < s.below AND w.id >= s.lowest
            ORDER BY w.id DESC NULLS LAST LIMIT $7
        ) UNION ALL (
            SELECT b.id FROM ingot.blocked AS b
            WHERE s.kind = 'blocked' AND b.tenant = $1 AND b.type = s.type
                AND b.id < s.below AND b.id >= s.lowest
            ORDER BY b.id DESC NULLS LAST LIMIT $7
        ) UNION ALL (
            SELECT c.id FROM ingot.canceled AS c
            WHERE s.kind = 'canceled' AND c.tenant = $1 AND c.type = s.type
                AND c.id < s.below AND c.id >= s.lowest
            ORDER BY c.id DESC NULLS LAST LIMIT $7
        ) UNION ALL (
            SELECT o.job FROM ingot.outcomes AS o
            WHERE s.kind = 'ended' AND o.tenant = $1 AND o.status_after = $8 AND o.status_after IN ('dead', 'canceled')
                AND o.job < s.below AND o.job >= s.lowest
            ORDER BY o.job DESC NULLS LAST LIMIT $7
        ) UNION ALL (
            -- Reads the leases of all tenants: there are only as many as running jobs.
            SELECT l.id FROM ingot.leases AS l
            WHERE s.kind = 'leases' AND l.tenant = $1 AND l.id < s.below AND l.id >= s.lowest
            ORDER BY l.id DESC LIMIT $7
        ) UNION ALL (
            -- These two are not ordered by id and are read to their end. They are used only if they are small.
            SELECT r.id FROM (SELECT r.id FROM ingot.ready AS r WHERE r.type = s.type AND r.tenant = $1 OFFSET 0) AS r
            WHERE s.kind = 'ready' AND r.id < s.below AND r.id >= s.lowest
            ORDER BY r.id DESC LIMIT $7
        ) UNION ALL (
            SELECT f.job FROM ingot.endings AS e CROSS JOIN LATERAL unnest(e.jobs) AS f (job)
            WHERE s.kind = 'endings' AND e.tenant = $1 AND e.type = s.type AND f.job < s.below AND f.job >= s.lowest
            ORDER BY f.job DESC LIMIT $7
        )
    ) AS j
),
cut_off AS MATERIALIZED (SELECT k.id FROM examined AS k WHERE k.place = $7 ORDER BY k.id DESC LIMIT 1),
candidates AS MATERIALIZED (
    SELECT DISTINCT k.id FROM examined AS k
    WHERE k.id >= coalesce((SELECT id FROM cut_off), '00000000-0000-0000-0000-000000000000')
)
SELECT (SELECT id::text FROM cut_off) AS cut_off,
    ARRAY(SELECT k.scan::integer FROM examined AS k WHERE k.place = 1 ORDER BY k.id DESC) AS head_scans,
    ARRAY(SELECT k.id FROM examined AS k WHERE k.place = 1 ORDER BY k.id DESC) AS head_ids,
    (SELECT count(*) FROM examined) AS examined,
    (SELECT id::text FROM candidates ORDER BY id LIMIT 1) AS lowest_id, ARRAY(
    -- Sorted first, so that no more jobs are checked than the limit needs; the most expensive checks come last.
    SELECT k.id::text FROM (SELECT id FROM candidates ORDER BY id DESC) AS k CROSS JOIN LATERAL (
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
        AND ($8::text IS NULL OR (SELECT r.status FROM ingot.job_rows AS r WHERE r.id = j.id) = $8)
    ORDER BY k.id DESC LIMIT $14
) AS matches

-- name: count_jobs_of_source
-- The number of jobs of the current tenant with a rare source, counted up to a limit.
SELECT count(*) FROM (
    SELECT FROM ingot.jobs AS j WHERE j.tenant = $1 AND j.source = $2 AND j.source <> 'manual'
    ORDER BY j.id NULLS FIRST LIMIT $3
) AS j

-- name: count_jobs_of_tag
-- The number of jobs of the current tenant with a tag, counted up to a limit.
SELECT count(*) FROM (
    SELECT FROM ingot.tags AS g WHERE g.tag = $2 AND g.tenant = $1 ORDER BY g.job NULLS FIRST LIMIT $3
) AS g

-- name: count_jobs_by_status
-- The number of these jobs of the current tenant in each status. Each job is looked up separately: with a join, the
-- planner could decide to read all jobs of the tenant.
SELECT d.status, count(*) AS jobs FROM (
    SELECT (SELECT s.status FROM ingot.job_rows AS s WHERE s.id = w.id) AS status FROM unnest($1::uuid[]) AS w (id) OFFSET 0
) AS d
WHERE d.status IS NOT NULL
GROUP BY d.status

-- name: counts_of_tenant
-- The number of jobs of the current tenant by type and status: counts and deltas in one snapshot.
SELECT d.type, d.status, sum(d.jobs)::bigint AS jobs FROM (
    SELECT type, status, jobs FROM ingot.counts WHERE tenant = $1
    UNION ALL
    SELECT type, status, jobs FROM ingot.count_deltas WHERE tenant = $1
) AS d
GROUP BY d.type, d.status
HAVING sum(d.jobs) > 0
ORDER BY d.type COLLATE "C"

-- name: some_counts_of_tenant
-- The number of jobs of the current tenant, optionally of one type ($2), by type and status, from at most $3 counts and $4
-- deltas. If one of these limits was reached, there may be more types.
SELECT d.type, d.status, sum(d.jobs)::bigint AS jobs,
    sum(count(*) FILTER (WHERE d.folded)) OVER () = $3 OR sum(count(*) FILTER (WHERE NOT d.folded)) OVER () = $4 AS is_partial
FROM (
    (SELECT type, status, jobs, true AS folded FROM ingot.counts WHERE tenant = $1 AND ($2::text IS NULL OR type = $2) LIMIT $3)
    UNION ALL
    (SELECT type, status, jobs, false FROM ingot.count_deltas WHERE tenant = $1 AND ($2::text IS NULL OR type = $2) LIMIT $4)
) AS d
GROUP BY d.type, d.status

-- name: summary_of_tenant
-- The number of jobs of the current tenant, optionally of one type ($2), by status (counts and deltas in one snapshot), when
-- the longest waiting ready job became due (from the first job of each priority in at most $3 lanes, whose types are found in
-- six times as many counts, and in all deltas), and the current time.
WITH RECURSIVE totals AS MATERIALIZED (
    SELECT status, jobs FROM ingot.count_totals WHERE tenant = $1 AND $2::text IS NULL
    UNION ALL
    SELECT status, jobs FROM ingot.counts WHERE tenant = $1 AND type = $2
    UNION ALL
    SELECT status, jobs FROM ingot.count_deltas WHERE tenant = $1 AND ($2::text IS NULL OR type = $2)
),
queued_types AS MATERIALIZED (
    SELECT DISTINCT d.type FROM (
        (SELECT type, status, jobs FROM ingot.counts WHERE tenant = $1 AND ($2::text IS NULL OR type = $2) LIMIT 6 * $3)
        UNION ALL
        SELECT type, status, jobs FROM ingot.count_deltas WHERE tenant = $1 AND ($2::text IS NULL OR type = $2)
    ) AS d WHERE d.status = 'queued' AND d.jobs > 0 LIMIT $3
),
lanes AS (
    SELECT c.type, (
        SELECT r.limit_key FROM ingot.ready AS r WHERE r.type = c.type AND r.tenant = $1 ORDER BY r.limit_key LIMIT 1
    ) AS limit_key
    FROM queued_types AS c
    UNION ALL
    SELECT l.type, (
        SELECT r.limit_key FROM ingot.ready AS r
        WHERE r.type = l.type AND r.tenant = $1 AND r.limit_key > l.limit_key ORDER BY r.limit_key LIMIT 1
    )
    FROM lanes AS l WHERE l.limit_key IS NOT NULL
)
SELECT
    (
        SELECT json_object_agg(c.status, c.jobs) FROM (SELECT status, sum(jobs) AS jobs FROM totals GROUP BY status) AS c
    )::text AS counts,
    (
        SELECT min(r.run_at) FROM (SELECT * FROM lanes LIMIT $3) AS l CROSS JOIN generate_series(1, 5) AS p (priority) CROSS JOIN LATERAL (
            SELECT r.run_at FROM ingot.ready AS r
            WHERE r.type = l.type AND r.tenant = $1 AND r.limit_key = l.limit_key AND r.priority = p.priority
            ORDER BY r.run_at LIMIT 1
        ) AS r
    ) AS oldest,
    ingot.clock() AS now

-- name: get_batch
-- The counters of a batch of the current tenant.
SELECT total, succeeded, dead, canceled FROM ingot.batch_totals($1, $2)

-- name: attempts_of_job
-- The attempts of a job of the current tenant, oldest first, as JSON.
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

-- name: logged_attempt
-- An attempt of a job of the current tenant, by number ($2) or the newest, and the parts of its log, beginning with the part
-- that contains an offset ($3). Every job has an attempt number 0 without a log.
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
