-- What follows when jobs have ended: others that waited for them go on, and batches are complete. It is done after
-- they ended, in transactions of its own, and found again by the watch when whoever ended them did not come to it.

-- Who moves jobs of a tenant out of `blocked` does it alone. The lock gives us no transaction id.
CREATE OR REPLACE FUNCTION ingot.lock_blocked(of_tenant uuid, of_job uuid) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF EXISTS (SELECT FROM ingot.blocked AS b WHERE b.id = of_job) THEN
        PERFORM pg_advisory_xact_lock(hashtextextended(of_tenant::text, 7305));
    END IF;
END
$$;

-- Jobs that waited for these, as far as these have ended: queued when it was the last they waited for, canceled when it
-- is dead or canceled and they do not run anyway. A bounded number; answers what became of them.
CREATE OR REPLACE FUNCTION ingot.release(of_parents uuid[], jobs_max integer)
RETURNS TABLE (
    id text, tenant text, type text, limit_key text, batch text, status text, priority smallint, run_at bigint, ready boolean
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
DECLARE
    now bigint;
    of_tenants uuid[] := ARRAY(SELECT DISTINCT j.tenant FROM unnest(of_parents) AS p (id) JOIN ingot.jobs AS j ON j.id = p.id);
    lacking uuid[] := '{}';
BEGIN
    PERFORM ingot.lock_blocked_of(of_tenants);
    -- Those that wait for uploads too: these end when the job is canceled.
    IF EXISTS (SELECT FROM ingot.uploads AS u WHERE u.job IS NOT NULL) THEN
        lacking := ARRAY(
            SELECT DISTINCT w.job FROM unnest(of_parents) AS p (id) CROSS JOIN LATERAL (
                SELECT w.job FROM ingot.waits AS w WHERE w.parent = p.id AND w.open ORDER BY w.job LIMIT jobs_max
            ) AS w
            WHERE ingot.lacks_input(w.job)
        );
        IF cardinality(lacking) > 0 THEN
            PERFORM ingot.lock_usage(of_tenants);
        END IF;
    END IF;
    now := ingot.clock();
    RETURN QUERY
    WITH ended AS MATERIALIZED (
        SELECT p.id AS parent, s.status FROM unnest(of_parents) AS p (id)
        CROSS JOIN LATERAL (SELECT s.status FROM ingot.job_rows AS s WHERE s.id = p.id) AS s
        WHERE s.status IN ('succeeded', 'dead', 'canceled')
    ),
    children AS MATERIALIZED (
        SELECT DISTINCT w.job FROM ended AS e CROSS JOIN LATERAL (
            SELECT w.job FROM ingot.waits AS w WHERE w.parent = e.parent AND w.open ORDER BY w.job LIMIT jobs_max
        ) AS w
        ORDER BY w.job LIMIT jobs_max
    ),
    judged AS MATERIALIZED (
        SELECT c.job, w.places, w.doomed, w.doomed OR w.left_open = 0 AND c.job <> ALL (lacking) AS goes FROM children AS c CROSS JOIN LATERAL (
            SELECT array_agg(w.ctid) FILTER (WHERE e.status IS NOT NULL) AS places,
                coalesce(bool_or(e.status <> 'succeeded' AND NOT w.runs_anyway), false) AS doomed,
                count(*) FILTER (WHERE e.status IS NULL) AS left_open
            FROM ingot.waits AS w LEFT JOIN LATERAL (
                SELECT e.status FROM ended AS e WHERE e.parent = w.parent LIMIT 1
            ) AS e ON true
            WHERE w.job = c.job AND w.open
        ) AS w
    ),
    untied AS (
        UPDATE ingot.waits AS w SET open = false
        FROM (
            SELECT unnest(j.places) AS place FROM judged AS j WHERE NOT j.doomed
            UNION ALL
            SELECT w.ctid FROM judged AS j CROSS JOIN LATERAL (
                SELECT w.ctid FROM ingot.waits AS w WHERE w.job = j.job AND w.open
            ) AS w
            WHERE j.doomed
        ) AS u
        WHERE w.ctid = u.place
    ),
    gone AS (
        DELETE FROM ingot.blocked AS b USING judged AS j WHERE b.id = j.job AND j.goes RETURNING b.*, j.doomed
    ),
    kept AS (
        INSERT INTO ingot.canceled (
            id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts, fence,
            told_at, finished_at
        )
        SELECT id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts,
            fence, told_at, now
        FROM gone WHERE doomed
    ),
    freed AS (
        DELETE FROM ingot.dedupe_keys AS k USING gone AS g
        WHERE g.doomed AND g.dedupe_key IS NOT NULL AND k.tenant = g.tenant AND k.key = g.dedupe_key
    ),
    due AS (
        INSERT INTO ingot.ready (
            id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts, fence,
            told_at
        )
        SELECT id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts,
            fence, told_at
        FROM gone WHERE NOT doomed AND run_at <= now
    ),
    put_off AS (
        INSERT INTO ingot.later (
            id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts, fence,
            told_at
        )
        SELECT id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts,
            fence, told_at
        FROM gone WHERE NOT doomed AND run_at > now
    ),
    told AS (
        INSERT INTO ingot.events (tenant, position, at, entries)
        SELECT tenant, ingot.position(pg_current_xact_id()), now, '[' || string_agg(
            ingot.news(CASE WHEN doomed THEN 'job.canceled' ELSE 'job.updated' END, ingot.ids(id), type,
                CASE WHEN doomed THEN 'canceled' ELSE 'queued' END, attempts, failures, crashes, fence, NULL,
                CASE WHEN NOT doomed THEN run_at END, NULL, NULL, false, NULL, NULL), ',' ORDER BY id) || ']'
        FROM gone GROUP BY tenant
    ),
    counted AS (
        INSERT INTO ingot.count_deltas (tenant, type, status, jobs)
        SELECT c.tenant, c.type, s.status, s.jobs
        FROM (
            SELECT tenant, type, count(*) FILTER (WHERE doomed) AS doomed, count(*) FILTER (WHERE NOT doomed) AS going
            FROM gone GROUP BY tenant, type
        ) AS c
        CROSS JOIN LATERAL (
            VALUES ('blocked', -c.doomed - c.going), ('canceled', c.doomed), ('queued', c.going)
        ) AS s (status, jobs)
        WHERE s.jobs <> 0
    ),
    noted AS (
        INSERT INTO ingot.endings (tenant, type, finished_at, size, jobs)
        SELECT tenant, type, now, count(*), array_agg(id) FROM gone WHERE doomed GROUP BY tenant, type
    ),
    batched AS (
        INSERT INTO ingot.batch_deltas (tenant, batch, status, jobs)
        SELECT tenant, batch, 'canceled', count(*) FROM gone WHERE doomed AND batch IS NOT NULL GROUP BY tenant, batch
    )
    SELECT j.job::text, g.tenant::text, g.type, g.limit_key, g.batch,
        CASE WHEN g.doomed THEN 'canceled' WHEN g.id IS NOT NULL THEN 'queued' ELSE 'blocked' END, g.priority, g.run_at,
        g.run_at <= now
    FROM judged AS j LEFT JOIN gone AS g ON g.id = j.job;
    IF cardinality(lacking) > 0 THEN
        PERFORM ingot.drop_inputs(lacking, now);
    END IF;
END
$$;

-- Jobs that others wait for and that have ended, of a bounded number after one; and the last that was looked at.
CREATE OR REPLACE FUNCTION ingot.ended_parents(after uuid, parents_max integer)
RETURNS TABLE (parent text, has_ended boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH RECURSIVE parents AS (
        SELECT ingot.next_parent(after) AS parent, 1 AS place
        UNION ALL
        SELECT ingot.next_parent(p.parent), p.place + 1 FROM parents AS p WHERE p.parent IS NOT NULL AND p.place < parents_max
    )
    SELECT p.parent::text, NOT EXISTS (
        SELECT FROM ingot.ready AS s WHERE s.id = p.parent UNION ALL
        SELECT FROM ingot.later AS s WHERE s.id = p.parent UNION ALL
        SELECT FROM ingot.blocked AS s WHERE s.id = p.parent UNION ALL
        SELECT FROM ingot.leases AS s WHERE s.id = p.parent
    )
    FROM parents AS p WHERE p.parent IS NOT NULL ORDER BY p.place;
END
$$;

CREATE OR REPLACE FUNCTION ingot.next_parent(after uuid) RETURNS uuid
LANGUAGE sql STABLE
AS $$ SELECT w.parent FROM ingot.waits AS w WHERE w.open AND w.parent > after ORDER BY w.parent LIMIT 1 $$;

-- Tell of those of these batches in which nothing is left unfinished, each once.
CREATE OR REPLACE FUNCTION ingot.close_batches(of_tenants uuid[], of_batches text[]) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_seqscan = off
SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
DECLARE
    name text;
BEGIN
    FOR name IN SELECT DISTINCT concat_ws(' ', t, b) FROM unnest(of_tenants, of_batches) AS a (t, b) ORDER BY 1 LOOP
        PERFORM pg_advisory_xact_lock(hashtextextended(name, 7306));
    END LOOP;
    WITH complete AS MATERIALIZED (
        SELECT a.tenant, a.batch, s.* FROM (SELECT DISTINCT t, b FROM unnest(of_tenants, of_batches) AS a (t, b)) AS a (tenant, batch)
        CROSS JOIN LATERAL ingot.sums_of_batch(a.tenant, a.batch) AS s
        WHERE s.total > 0 AND s.total = s.succeeded + s.dead + s.canceled AND s.told <> s.total
    ),
    noted AS (
        INSERT INTO ingot.batches AS b (tenant, batch, total, succeeded, dead, canceled, told)
        SELECT tenant, batch, 0, 0, 0, 0, total FROM complete
        ON CONFLICT (tenant, batch) DO UPDATE SET told = excluded.told
    )
    INSERT INTO ingot.events (tenant, position, at, entries)
    SELECT tenant, ingot.position(pg_current_xact_id()), ingot.clock(), '[' || string_agg(
        '["batch.completed",' || to_json(batch) || ',"","succeeded",' || total || ',' || succeeded || ',' || dead || ','
        || canceled || ']', ',' ORDER BY batch) || ']'
    FROM complete GROUP BY tenant;
END
$$;

-- A batch in numbers, with what was not folded into them yet.
CREATE OR REPLACE FUNCTION ingot.sums_of_batch(of_tenant uuid, of_batch text)
RETURNS TABLE (total bigint, succeeded bigint, dead bigint, canceled bigint, told bigint)
LANGUAGE sql STABLE
AS $$
    SELECT coalesce(sum(s.total), 0)::bigint, coalesce(sum(s.succeeded), 0)::bigint, coalesce(sum(s.dead), 0)::bigint,
        coalesce(sum(s.canceled), 0)::bigint, coalesce(sum(s.told), 0)::bigint
    FROM (
        SELECT b.total, b.succeeded, b.dead, b.canceled, b.told FROM ingot.batches AS b
        WHERE b.tenant = of_tenant AND b.batch = of_batch
        UNION ALL
        SELECT CASE d.status WHEN 'queued' THEN d.jobs END, CASE d.status WHEN 'succeeded' THEN d.jobs END,
            CASE d.status WHEN 'dead' THEN d.jobs END, CASE d.status WHEN 'canceled' THEN d.jobs END, 0
        FROM ingot.batch_deltas AS d WHERE d.tenant = of_tenant AND d.batch = of_batch
    ) AS s
$$;

-- Fold deltas of batches, and answer those that are complete and were not told of.
CREATE OR REPLACE FUNCTION ingot.fold_batches(deltas_max integer) RETURNS TABLE (tenant text, batch text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    -- A row that nobody else can lock; an advisory lock could be taken by any role.
    PERFORM FROM ingot.migrations WHERE number = 1 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    WITH gone AS (
        DELETE FROM ingot.batch_deltas WHERE ctid = ANY (ARRAY(SELECT ctid FROM ingot.batch_deltas LIMIT deltas_max))
        RETURNING tenant, batch, status, jobs
    )
    INSERT INTO ingot.batches AS b (tenant, batch, total, succeeded, dead, canceled)
    SELECT tenant, batch, coalesce(sum(jobs) FILTER (WHERE status = 'queued'), 0),
        coalesce(sum(jobs) FILTER (WHERE status = 'succeeded'), 0), coalesce(sum(jobs) FILTER (WHERE status = 'dead'), 0),
        coalesce(sum(jobs) FILTER (WHERE status = 'canceled'), 0)
    FROM gone GROUP BY tenant, batch ORDER BY tenant, batch
    ON CONFLICT (tenant, batch) DO UPDATE SET total = b.total + excluded.total, succeeded = b.succeeded + excluded.succeeded,
        dead = b.dead + excluded.dead, canceled = b.canceled + excluded.canceled;
    RETURN QUERY
    SELECT b.tenant::text, b.batch FROM ingot.batches AS b
    WHERE b.total = b.succeeded + b.dead + b.canceled AND b.told <> b.total LIMIT 100;
END
$$;
