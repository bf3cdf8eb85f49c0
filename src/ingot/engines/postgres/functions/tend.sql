-- Work that has become due after one instant joins the ready work, the longest due first; answers the lanes it went to,
-- and the priority and time of the first.
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
    gone AS (
        DELETE FROM ingot.later AS w WHERE w.ctid = ANY (ARRAY(SELECT at FROM due)) RETURNING w.*
    ),
    moved AS (
        INSERT INTO ingot.ready (
            id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts, fence,
            told_at
        )
        SELECT id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts, fence,
            told_at
        FROM gone
    )
    SELECT type, tenant::text, limit_key, count(*), min(ARRAY[priority, run_at]) FROM gone
    GROUP BY type, tenant, limit_key;
END
$$;

-- The leases that ran out first, after one instant; none within one lease length of the database coming up.
CREATE OR REPLACE FUNCTION ingot.expired(lease_length bigint, jobs_max integer, after bigint)
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
    IF now < ingot.up_since() + lease_length THEN
        RETURN;
    END IF;
    RETURN QUERY
    SELECT l.id::text, l.fence, l.expires_at FROM ingot.leases AS l
    WHERE l.expires_at <= now AND l.expires_at > after
    ORDER BY l.expires_at LIMIT jobs_max
    FOR UPDATE SKIP LOCKED;  -- One that somebody holds is not waited for.
END
$$;

-- Take these attempts for lost, as far as their leases have run out.
CREATE OR REPLACE FUNCTION ingot.sweep(ids uuid[], fences bigint[])
RETURNS TABLE (
    places integer[], status text, attempts integer, run_at bigint, type text, tenant text, limit_key text,
    first bigint[], parents text[], batch text, said text, micros bigint[]
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

-- What a process has to know from time to time: the lanes that have ready work, found by jumping from lane to lane in
-- the index, the tenants that were removed (rows with a tenant only), the next instants on the agenda (a row without a
-- lane), and the time.
CREATE OR REPLACE FUNCTION ingot.look()
RETURNS TABLE (
    type text, tenant text, limit_key text, weight integer, now bigint, next_due bigint, next_expiry bigint,
    deltas boolean, bounded boolean, waits boolean, record_changes bigint
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
        NULL::bigint, NULL::bigint, NULL::bigint, NULL::boolean, NULL::boolean, NULL::boolean, NULL::bigint
    FROM lanes AS l JOIN ingot.tenants AS t ON t.id = l.tenant
    UNION ALL
    SELECT NULL, r.tenant::text, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM ingot.removed_tenants AS r
    UNION ALL
    SELECT NULL, NULL, NULL, NULL, ingot.clock(), (SELECT min(w.run_at) FROM ingot.later AS w),
        (SELECT min(l.expires_at) FROM ingot.leases AS l), EXISTS (SELECT FROM ingot.count_deltas),
        ingot.is_bounded(), EXISTS (SELECT FROM ingot.waits WHERE open), (SELECT c.changes FROM ingot.record_changes AS c);
END
$$;

-- Fold deltas into the counts, one process at a time.
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
    folded integer;
BEGIN
    -- A row that nobody else can lock; an advisory lock could be taken by any role.
    PERFORM FROM ingot.migrations WHERE number = 1 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    WITH gone AS (
        DELETE FROM ingot.count_deltas WHERE ctid = ANY (ARRAY(SELECT ctid FROM ingot.count_deltas LIMIT deltas_max))
        RETURNING tenant, type, status, jobs
    ),
    summed AS (
        INSERT INTO ingot.counts AS c (tenant, type, status, jobs)
        SELECT tenant, type, status, sum(jobs) FROM gone GROUP BY tenant, type, status ORDER BY tenant, type, status
        ON CONFLICT (tenant, type, status) DO UPDATE SET jobs = c.jobs + excluded.jobs
    )
    SELECT count(*) INTO folded FROM gone;
    RETURN folded;
END
$$;

-- The next instants on the agenda.
CREATE OR REPLACE FUNCTION ingot.next_due(after bigint) RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ SELECT min(run_at) FROM ingot.later WHERE run_at > after $$;

CREATE OR REPLACE FUNCTION ingot.next_expiry(after bigint) RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ SELECT min(expires_at) FROM ingot.leases WHERE expires_at > after $$;

-- Tell the other processes what became ready. Only a hint, so nobody waits for the disk.
CREATE OR REPLACE FUNCTION ingot.tell(news text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM pg_notify('ingot_ready', news);
END
$$;
