-- The consequences of finished jobs: dependents are released and batches completed. This happens after the jobs finished, in
-- separate transactions. If the process that finished them fails before that, maintenance finds them.

-- Serialize moving jobs of a tenant out of `blocked`, if the job is there. The lock does not assign a transaction ID.
CREATE OR REPLACE FUNCTION ingot.lock_if_blocked(of_tenant uuid, of_job uuid) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF EXISTS (SELECT FROM ingot.blocked AS b WHERE b.id = of_job) THEN
        PERFORM pg_advisory_xact_lock(hashtextextended(of_tenant::text, 7305));
    END IF;
END
$$;

-- Release up to `jobs_max` jobs that wait for these parents, if the parents are finished. A job is queued after its last
-- parent, and canceled if a parent is dead or canceled and it does not run anyway. Returns the new status of each.
CREATE OR REPLACE FUNCTION ingot.release_dependents(of_parents uuid[], jobs_max integer)
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
    waiting_for_uploads uuid[] := '{}';
BEGIN
    PERFORM ingot.lock_blocked_jobs(of_tenants);
    -- Canceling a job that also waits for uploads ends the uploads.
    IF EXISTS (SELECT FROM ingot.uploads AS u WHERE u.job IS NOT NULL) THEN
        waiting_for_uploads := ARRAY(
            SELECT DISTINCT w.job FROM unnest(of_parents) AS p (id) CROSS JOIN LATERAL (
                SELECT w.job FROM ingot.waits AS w WHERE w.parent = p.id AND w.open ORDER BY w.job LIMIT jobs_max
            ) AS w
            WHERE ingot.waits_for_upload(w.job)
        );
        IF cardinality(waiting_for_uploads) > 0 THEN
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
    dependents AS MATERIALIZED (
        SELECT DISTINCT w.job FROM ended AS e CROSS JOIN LATERAL (
            SELECT w.job FROM ingot.waits AS w WHERE w.parent = e.parent AND w.open ORDER BY w.job LIMIT jobs_max
        ) AS w
        ORDER BY w.job LIMIT jobs_max
    ),
    decisions AS MATERIALIZED (
        SELECT c.job, w.ended_waits, w.is_canceled,
            w.is_canceled OR w.open_parents = 0 AND c.job <> ALL (waiting_for_uploads) AS is_unblocked
        FROM dependents AS c CROSS JOIN LATERAL (
            SELECT array_agg(w.ctid) FILTER (WHERE e.status IS NOT NULL) AS ended_waits,
                coalesce(bool_or(e.status <> 'succeeded' AND NOT w.runs_anyway), false) AS is_canceled,
                count(*) FILTER (WHERE e.status IS NULL) AS open_parents
            FROM ingot.waits AS w LEFT JOIN LATERAL (
                SELECT e.status FROM ended AS e WHERE e.parent = w.parent LIMIT 1
            ) AS e ON true
            WHERE w.job = c.job AND w.open
        ) AS w
    ),
    closed_waits AS (
        UPDATE ingot.waits AS w SET open = false
        FROM (
            SELECT unnest(j.ended_waits) AS wait_ctid FROM decisions AS j WHERE NOT j.is_canceled
            UNION ALL
            SELECT w.ctid FROM decisions AS j CROSS JOIN LATERAL (
                SELECT w.ctid FROM ingot.waits AS w WHERE w.job = j.job AND w.open
            ) AS w
            WHERE j.is_canceled
        ) AS u
        WHERE w.ctid = u.wait_ctid
    ),
    unblocked AS (
        DELETE FROM ingot.blocked AS b USING decisions AS j WHERE b.id = j.job AND j.is_unblocked RETURNING b.*, j.is_canceled
    ),
    added_canceled AS (
        INSERT INTO ingot.canceled (
            id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts, fence,
            told_at, finished_at
        )
        SELECT id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts,
            fence, told_at, now
        FROM unblocked WHERE is_canceled
    ),
    deleted_dedupe_keys AS (
        DELETE FROM ingot.dedupe_keys AS k USING unblocked AS g
        WHERE g.is_canceled AND g.dedupe_key IS NOT NULL AND k.tenant = g.tenant AND k.key = g.dedupe_key
    ),
    added_ready AS (
        INSERT INTO ingot.ready (
            id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts, fence,
            told_at
        )
        SELECT id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts,
            fence, told_at
        FROM unblocked WHERE NOT is_canceled AND run_at <= now
    ),
    added_later AS (
        INSERT INTO ingot.later (
            id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts, fence,
            told_at
        )
        SELECT id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts,
            fence, told_at
        FROM unblocked WHERE NOT is_canceled AND run_at > now
    ),
    added_events AS (
        INSERT INTO ingot.events (tenant, position, at, entries)
        SELECT tenant, ingot.event_position(pg_current_xact_id()), now, '[' || string_agg(
            ingot.job_event_entry(CASE WHEN is_canceled THEN 'job.canceled' ELSE 'job.updated' END, ingot.quoted_id(id), type,
                CASE WHEN is_canceled THEN 'canceled' ELSE 'queued' END, attempts, failures, crashes, fence, NULL,
                CASE WHEN NOT is_canceled THEN run_at END, NULL, NULL, false, NULL, NULL), ',' ORDER BY id) || ']'
        FROM unblocked GROUP BY tenant
    ),
    added_counts AS (
        INSERT INTO ingot.count_deltas (tenant, type, status, jobs)
        SELECT c.tenant, c.type, s.status, s.jobs
        FROM (
            SELECT tenant, type, count(*) FILTER (WHERE is_canceled) AS jobs_canceled,
                count(*) FILTER (WHERE NOT is_canceled) AS jobs_queued
            FROM unblocked GROUP BY tenant, type
        ) AS c
        CROSS JOIN LATERAL (
            VALUES ('blocked', -c.jobs_canceled - c.jobs_queued), ('canceled', c.jobs_canceled), ('queued', c.jobs_queued)
        ) AS s (status, jobs)
        WHERE s.jobs <> 0
    ),
    added_endings AS (
        INSERT INTO ingot.endings (tenant, type, finished_at, size, jobs)
        SELECT tenant, type, now, count(*), array_agg(id) FROM unblocked WHERE is_canceled GROUP BY tenant, type
    ),
    added_batch_deltas AS (
        INSERT INTO ingot.batch_deltas (tenant, batch, status, jobs)
        SELECT tenant, batch, 'canceled', count(*) FROM unblocked WHERE is_canceled AND batch IS NOT NULL GROUP BY tenant, batch
    )
    SELECT j.job::text, g.tenant::text, g.type, g.limit_key, g.batch,
        CASE WHEN g.is_canceled THEN 'canceled' WHEN g.id IS NOT NULL THEN 'queued' ELSE 'blocked' END, g.priority, g.run_at,
        g.run_at <= now
    FROM decisions AS j LEFT JOIN unblocked AS g ON g.id = j.job;
    IF cardinality(waiting_for_uploads) > 0 THEN
        PERFORM ingot.drop_inputs(waiting_for_uploads, now);
    END IF;
END
$$;

-- The next `parents_max` jobs after one that others wait for, and whether each is finished.
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
        SELECT ingot.next_parent(after) AS parent, 1 AS number
        UNION ALL
        SELECT ingot.next_parent(p.parent), p.number + 1 FROM parents AS p WHERE p.parent IS NOT NULL AND p.number < parents_max
    )
    SELECT p.parent::text, NOT EXISTS (
        SELECT FROM ingot.ready AS s WHERE s.id = p.parent UNION ALL
        SELECT FROM ingot.later AS s WHERE s.id = p.parent UNION ALL
        SELECT FROM ingot.blocked AS s WHERE s.id = p.parent UNION ALL
        SELECT FROM ingot.leases AS s WHERE s.id = p.parent
    )
    FROM parents AS p WHERE p.parent IS NOT NULL ORDER BY p.number;
END
$$;

CREATE OR REPLACE FUNCTION ingot.next_parent(after uuid) RETURNS uuid
LANGUAGE sql STABLE
AS $$ SELECT w.parent FROM ingot.waits AS w WHERE w.open AND w.parent > after ORDER BY w.parent LIMIT 1 $$;

-- Publish `batch.completed` once for each of these batches without unfinished jobs.
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
    lock_name text;
BEGIN
    FOR lock_name IN SELECT DISTINCT concat_ws(' ', t, b) FROM unnest(of_tenants, of_batches) AS a (t, b) ORDER BY 1 LOOP
        PERFORM pg_advisory_xact_lock(hashtextextended(lock_name, 7306));
    END LOOP;
    WITH complete AS MATERIALIZED (
        SELECT a.tenant, a.batch, s.* FROM (SELECT DISTINCT t, b
        FROM unnest(of_tenants, of_batches) AS a (t, b)) AS a (tenant, batch)
        CROSS JOIN LATERAL ingot.batch_totals(a.tenant, a.batch) AS s
        WHERE s.total > 0 AND s.total = s.succeeded + s.dead + s.canceled AND s.told <> s.total
    ),
    marked_batches AS (
        INSERT INTO ingot.batches AS b (tenant, batch, total, succeeded, dead, canceled, told)
        SELECT tenant, batch, 0, 0, 0, 0, total FROM complete
        ON CONFLICT (tenant, batch) DO UPDATE SET told = excluded.told
    )
    INSERT INTO ingot.events (tenant, position, at, entries)
    SELECT tenant, ingot.event_position(pg_current_xact_id()), ingot.clock(), '[' || string_agg(
        '["batch.completed",' || to_json(batch) || ',"","succeeded",' || total || ',' || succeeded || ',' || dead || ','
        || canceled || ']', ',' ORDER BY batch) || ']'
    FROM complete GROUP BY tenant;
END
$$;

-- The counters of a batch, including deltas that are not folded yet.
CREATE OR REPLACE FUNCTION ingot.batch_totals(of_tenant uuid, of_batch text)
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

-- Add deltas to the counters of batches, and return complete batches without an event.
CREATE OR REPLACE FUNCTION ingot.fold_batches(deltas_max integer) RETURNS TABLE (tenant text, batch text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    -- Lock a row instead of taking an advisory lock, which any role could take.
    PERFORM FROM ingot.migrations WHERE number = 1 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    WITH folded_deltas AS (
        DELETE FROM ingot.batch_deltas WHERE ctid = ANY (ARRAY(SELECT ctid FROM ingot.batch_deltas LIMIT deltas_max))
        RETURNING tenant, batch, status, jobs
    )
    INSERT INTO ingot.batches AS b (tenant, batch, total, succeeded, dead, canceled)
    SELECT tenant, batch, coalesce(sum(jobs) FILTER (WHERE status = 'queued'), 0),
        coalesce(sum(jobs) FILTER (WHERE status = 'succeeded'), 0), coalesce(sum(jobs) FILTER (WHERE status = 'dead'), 0),
        coalesce(sum(jobs) FILTER (WHERE status = 'canceled'), 0)
    FROM folded_deltas GROUP BY tenant, batch ORDER BY tenant, batch
    ON CONFLICT (tenant, batch) DO UPDATE SET total = b.total + excluded.total, succeeded = b.succeeded + excluded.succeeded,
        dead = b.dead + excluded.dead, canceled = b.canceled + excluded.canceled;
    RETURN QUERY
    SELECT b.tenant::text, b.batch FROM ingot.batches AS b
    WHERE b.total = b.succeeded + b.dead + b.canceled AND b.told <> b.total LIMIT 100;
END
$$;
