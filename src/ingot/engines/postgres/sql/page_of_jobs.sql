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
