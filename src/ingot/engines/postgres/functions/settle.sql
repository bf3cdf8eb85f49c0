-- End the attempts that are held under these fences, each as `judge` says; the others are left out of the answer.
-- A lease that is taken for lost must have run out. Not for callers: it takes their word for 'lost'.
CREATE OR REPLACE FUNCTION ingot.end_attempts(
    ids uuid[], fences bigint[], tenants uuid[], outcomes text[], retries boolean[], delays bigint[],
    exit_codes bigint[], errors text[], results bytea[]
) RETURNS TABLE (place integer, status text, attempts integer, run_at bigint, type text, tenant text)
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
    WITH asked AS MATERIALIZED (
        SELECT * FROM unnest(ids, fences, tenants, outcomes, retries, delays, exit_codes, errors, results)
            WITH ORDINALITY AS a (id, fence, tenant, said, retry, delay, exit_code, said_error, result, place)
    ),
    held AS MATERIALIZED (
        SELECT l.*, a.said, a.retry, a.delay, a.exit_code, a.said_error, a.result, a.place, ingot.spread() AS spread
        FROM (SELECT * FROM asked ORDER BY id) AS a CROSS JOIN LATERAL (
            SELECT l.* FROM ingot.leases AS l
            WHERE l.id = a.id AND l.fence = a.fence AND (a.tenant IS NULL OR a.tenant = l.tenant)
                AND (a.said <> 'lost' OR l.expires_at <= now)
            FOR UPDATE
        ) AS l
    ),
    -- A version written by a transaction that came after this one would put its event after ours: begin again.
    checked AS MATERIALIZED (
        SELECT CASE WHEN max(changed_by) > pg_current_xact_id() THEN ingot.begin_again() END FROM held
    ),
    judged AS MATERIALIZED (
        SELECT h.*, v.status, v.failures_after, v.crashes_after, v.error,
            CASE WHEN v.status = 'queued' THEN v.run_at_after END AS again_at
        FROM checked CROSS JOIN held AS h
        LEFT JOIN LATERAL (
            SELECT d.* FROM ingot.definitions AS d
            WHERE h.said IN ('failed', 'lost')
                AND d.type = h.type AND d.tenant IN (h.tenant, '00000000-0000-0000-0000-000000000000')
            ORDER BY d.tenant DESC LIMIT 1
        ) AS d ON true
        CROSS JOIN LATERAL ingot.judge(
            h.said, h.retry, h.delay, h.said_error, h.failures, h.crashes, h.max_attempts, h.cancel_requested,
            coalesce(d.crash_cap, 3), coalesce(d.first_seconds, 1), coalesce(d.factor, 2), coalesce(d.max_seconds, 3600),
            now, h.spread
        ) AS v
    ),
    gone AS (
        -- By id, never by place: a row that was renewed after our snapshot is found where it is now.
        DELETE FROM ingot.leases AS l WHERE l.id = ANY (ARRAY(SELECT id FROM judged))
    ),
    freed AS (
        DELETE FROM ingot.dedupe_keys AS k WHERE k.ctid = ANY (ARRAY(
            SELECT d.at FROM judged AS j CROSS JOIN LATERAL (
                SELECT d.ctid AS at FROM ingot.dedupe_keys AS d WHERE d.tenant = j.tenant AND d.key = j.dedupe_key LIMIT 1
            ) AS d
            WHERE j.dedupe_key IS NOT NULL AND j.status <> 'queued'
        ))
    ),
    ended AS (
        INSERT INTO ingot.outcomes (
            job, fence, tenant, outcome, retry, status_after, run_at, attempts, failures, crashes, max_attempts, priority,
            cancel_requested, finished_at, exit_code, error, result, percent, stage, told_at
        )
        SELECT id, fence, tenant, said, retry, status, coalesce(again_at, run_at), attempts, failures_after, crashes_after,
            max_attempts, priority, cancel_requested, now, exit_code, error, result, percent, stage,
            told_at
        FROM judged
    ),
    due AS (
        INSERT INTO ingot.ready (
            id, tenant, type, limit_key, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts, fence, told_at
        )
        SELECT id, tenant, type, limit_key, dedupe_key, priority, again_at, attempts, failures_after, crashes_after,
            max_attempts, fence, told_at
        FROM judged WHERE again_at <= now
    ),
    waiting AS (
        INSERT INTO ingot.later (
            id, tenant, type, limit_key, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts, fence, told_at
        )
        SELECT id, tenant, type, limit_key, dedupe_key, priority, again_at, attempts, failures_after, crashes_after,
            max_attempts, fence, told_at
        FROM judged WHERE again_at > now
    ),
    told AS (
        INSERT INTO ingot.events (tenant, xid, at, entries)
        SELECT j.tenant, pg_current_xact_id(), now, '[' || string_agg(
            ingot.news(e.name, j.id, j.type, j.status, j.attempts, j.failures_after, j.crashes_after, j.fence, NULL,
                j.again_at, CASE WHEN e.name = 'job.failed' THEN j.status = 'queued' END,
                CASE WHEN e.name IN ('job.failed', 'job.dead') THEN j.error END,
                j.cancel_requested, NULL, NULL), ',' ORDER BY j.place, e.step) || ']'
        FROM judged AS j CROSS JOIN LATERAL (
            SELECT 1 AS step, 'job.failed' AS name WHERE j.said IN ('failed', 'lost')
            UNION ALL
            SELECT 2, CASE j.status
                WHEN 'succeeded' THEN 'job.completed'
                WHEN 'dead' THEN 'job.dead'
                WHEN 'canceled' THEN 'job.canceled'
                ELSE 'job.updated'
            END WHERE j.status <> 'queued' OR j.said IN ('snoozed', 'released')
        ) AS e
        GROUP BY j.tenant
    ),
    counted AS (
        INSERT INTO ingot.count_deltas (tenant, type, status, jobs)
        SELECT tenant, type, 'running', -count(*) FROM judged GROUP BY tenant, type
        UNION ALL
        SELECT tenant, type, status, count(*) FROM judged GROUP BY tenant, type, status
    )
    SELECT place::integer, status, attempts, again_at, type, tenant::text FROM judged ORDER BY place;
END
$$;

-- Begin again: the caller sends the batch once more.
CREATE OR REPLACE FUNCTION ingot.begin_again() RETURNS boolean
LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'a row changed after this transaction began' USING ERRCODE = 'serialization_failure';
END
$$;

-- Record how attempts ended, as their workers say; only the sweep may say 'lost'.
CREATE OR REPLACE FUNCTION ingot.settle(
    ids uuid[], fences bigint[], tenants uuid[], outcomes text[], retries boolean[], delays bigint[],
    exit_codes bigint[], errors text[], results bytea[]
) RETURNS TABLE (place integer, status text, attempts integer, run_at bigint, type text, tenant text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF 'lost' = ANY (outcomes) THEN
        RAISE EXCEPTION 'no worker can say that it was lost' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN QUERY
    SELECT * FROM ingot.end_attempts(ids, fences, tenants, outcomes, retries, delays, exit_codes, errors, results);
END
$$;
