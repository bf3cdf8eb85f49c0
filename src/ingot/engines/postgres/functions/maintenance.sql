-- Move jobs that became due after a time from `later` to `ready`, longest due first. Returns their lanes, each with the
-- number of jobs and the priority and time of the first.
CREATE OR REPLACE FUNCTION ingot.promote(jobs_max integer, after bigint)
RETURNS TABLE (type text, tenant text, limit_key text, jobs bigint, first bigint[])
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
DECLARE
    now bigint := ingot.clock();
BEGIN
    RETURN QUERY
    WITH due AS MATERIALIZED (
        SELECT w.ctid AS at FROM ingot.later AS w WHERE w.run_at <= now AND w.run_at > after
        ORDER BY w.run_at, w.id LIMIT jobs_max
        FOR UPDATE SKIP LOCKED
    ),
    promoted AS (
        DELETE FROM ingot.later AS w WHERE w.ctid = ANY (ARRAY(SELECT at FROM due)) RETURNING w.*
    ),
    added_ready AS (
        INSERT INTO ingot.ready (
            id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts, fence,
            told_at
        )
        SELECT id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts, fence,
            told_at
        FROM promoted
    )
    SELECT type, tenant::text, limit_key, count(*), min(ARRAY[priority, run_at]) FROM promoted
    GROUP BY type, tenant, limit_key;
END
$$;

-- Leases that expired after a time, oldest first. None within one lease length after the server started.
CREATE OR REPLACE FUNCTION ingot.expired_leases(lease_length bigint, jobs_max integer, after bigint)
RETURNS TABLE (id text, fence bigint, expires_at bigint)
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
DECLARE
    now bigint := ingot.clock();
BEGIN
    IF now < ingot.server_started_at() + lease_length THEN
        RETURN;
    END IF;
    RETURN QUERY
    SELECT l.id::text, l.fence, l.expires_at FROM ingot.leases AS l
    WHERE l.expires_at <= now AND l.expires_at > after
    ORDER BY l.expires_at LIMIT jobs_max
    FOR UPDATE SKIP LOCKED;  -- Leases that another transaction has locked are left for the next call.
END
$$;

-- End these attempts as lost if their leases have expired.
CREATE OR REPLACE FUNCTION ingot.sweep(ids uuid[], fences bigint[])
RETURNS TABLE (
    places integer[], status text, attempts integer, run_at bigint, type text, tenant text, limit_key text,
    first bigint[], parents text[], batch text, outcome text, micros bigint[]
)
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
    SELECT * FROM ingot.settle(
        ids, fences, NULL, array_fill('lost'::text, ARRAY[cardinality(ids)]), NULL, NULL, NULL, NULL, NULL
    );
END
$$;

-- The state that every process polls: the lanes with ready jobs, found by skipping from lane to lane in the index; the
-- removed tenants (rows with a tenant only); and one row without a tenant with the time, the next due times and flags.
CREATE OR REPLACE FUNCTION ingot.poll()
RETURNS TABLE (
    type text, tenant text, limit_key text, weight integer, now bigint, next_due bigint, next_expiry bigint,
    deltas boolean, bounded boolean, waits boolean, record_changes bigint, applied_revision text
)
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
    WITH RECURSIVE lanes AS (
        (SELECT r.type, r.tenant, r.limit_key FROM ingot.ready AS r ORDER BY r.type, r.tenant, r.limit_key LIMIT 1)
        UNION ALL
        SELECT n.type, n.tenant, n.limit_key FROM lanes AS l CROSS JOIN LATERAL (
            SELECT r.type, r.tenant, r.limit_key FROM ingot.ready AS r
            WHERE (r.type, r.tenant, r.limit_key) > (l.type, l.tenant, l.limit_key)
            ORDER BY r.type, r.tenant, r.limit_key LIMIT 1
        ) AS n
    )
    SELECT l.type, l.tenant::text, l.limit_key, t.weight,
        NULL::bigint, NULL::bigint, NULL::bigint, NULL::boolean, NULL::boolean, NULL::boolean, NULL::bigint, NULL::text
    FROM lanes AS l JOIN ingot.tenants AS t ON t.id = l.tenant
    UNION ALL
    SELECT NULL, r.tenant::text, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
    FROM ingot.removed_tenants AS r
    UNION ALL
    SELECT NULL, NULL, NULL, NULL, ingot.clock(), (SELECT min(w.run_at) FROM ingot.later AS w),
        (SELECT min(l.expires_at) FROM ingot.leases AS l), EXISTS (SELECT FROM ingot.count_deltas),
        ingot.is_bounded(), EXISTS (SELECT FROM ingot.waits WHERE open), (SELECT c.changes FROM ingot.record_changes AS c),
        obj_description(to_regnamespace('ingot'), 'pg_namespace');
END
$$;

-- Add deltas to the counts, one process at a time, and mark their types that have no jobs any more.
CREATE OR REPLACE FUNCTION ingot.fold_counts(deltas_max integer) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    deltas_folded integer;
    tenants uuid[];
    types text[];
BEGIN
    -- Lock a row instead of taking an advisory lock, which any role could take.
    PERFORM FROM ingot.migrations WHERE number = 1 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    WITH folded_deltas AS (
        DELETE FROM ingot.count_deltas WHERE ctid = ANY (ARRAY(SELECT ctid FROM ingot.count_deltas LIMIT deltas_max))
        RETURNING tenant, type, status, jobs
    ),
    updated_counts AS (
        INSERT INTO ingot.counts AS c (tenant, type, status, jobs)
        SELECT tenant, type, status, sum(jobs) FROM folded_deltas GROUP BY tenant, type, status ORDER BY tenant, type, status
        ON CONFLICT (tenant, type, status) DO UPDATE SET jobs = c.jobs + excluded.jobs
    ),
    updated_totals AS (
        INSERT INTO ingot.count_totals AS c (tenant, status, jobs)
        SELECT tenant, status, sum(jobs) FROM folded_deltas GROUP BY tenant, status ORDER BY tenant, status
        ON CONFLICT (tenant, status) DO UPDATE SET jobs = c.jobs + excluded.jobs
    )
    SELECT sum(t.deltas), array_agg(t.tenant), array_agg(t.type) INTO deltas_folded, tenants, types
    FROM (SELECT tenant, type, count(*) AS deltas FROM folded_deltas GROUP BY tenant, type) AS t;
    -- Rows that are locked are skipped: their types get jobs, unless the transaction fails and leaves them marked.
    UPDATE ingot.tenant_types AS u SET unused = '0' WHERE u.ctid = ANY (ARRAY(
        SELECT u.ctid FROM unnest(tenants, types) AS t (tenant, type)
        JOIN ingot.tenant_types AS u ON u.tenant = t.tenant AND u.type = t.type
        WHERE u.unused IS NULL AND NOT EXISTS (SELECT FROM ingot.jobs AS j WHERE j.tenant = t.tenant AND j.type = t.type)
        FOR NO KEY UPDATE OF u SKIP LOCKED
    ));
    RETURN coalesce(deltas_folded, 0);
END
$$;

-- The next time a job becomes due, and the next time a lease expires.
CREATE OR REPLACE FUNCTION ingot.next_due(after bigint) RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ SELECT min(run_at) FROM ingot.later WHERE run_at > after $$;

CREATE OR REPLACE FUNCTION ingot.next_expiry(after bigint) RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ SELECT min(expires_at) FROM ingot.leases WHERE expires_at > after $$;

-- Notify other processes of ready lanes. Only a hint, so the commit does not wait for the disk.
CREATE OR REPLACE FUNCTION ingot.notify_ready(payload text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM pg_notify('ingot_ready', payload);
END
$$;
