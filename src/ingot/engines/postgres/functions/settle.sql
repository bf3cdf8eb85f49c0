-- End the attempts that are held under these fences, each as `judge` says; the others are left out of the answer.
-- What is not said is taken for granted: a success, of any tenant and worker, with nothing to tell.
-- A lease that is taken for lost must have run out. Attempts that ended alike are answered together, by their places,
-- counted from 1, with how long each ran. Rows without places name those that others wait for, and the batches they are of.
-- An attempt that names an output which is not there is not ended: it stands alone in a row without a status, and the name
-- where a type would be.
CREATE OR REPLACE FUNCTION ingot.settle(
    ids uuid[], fences bigint[], tenants uuid[], outcomes text[], retries boolean[], delays bigint[],
    exit_codes bigint[], errors text[], results bytea[], workers text[] DEFAULT NULL, all_outputs json[] DEFAULT NULL
) RETURNS TABLE (
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
SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
DECLARE
    now bigint := ingot.clock();
    makers uuid[] := '{}';
    lacking integer[] := '{}';
    lacks text[];
BEGIN
    IF NOT outcomes <@ ARRAY['succeeded', 'failed', 'snoozed', 'released', 'lost'] THEN
        RAISE EXCEPTION 'an attempt ends as succeeded, failed, snoozed, released or lost' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF all_outputs IS NOT NULL OR EXISTS (SELECT FROM ingot.uploads AS u WHERE u.fence IS NOT NULL)
        OR EXISTS (SELECT FROM ingot.job_files AS f WHERE f.kind IN ('output', 'checkpoint')) THEN
        SELECT h.makers, h.lacking, h.lacks INTO makers, lacking, lacks
        FROM ingot.hold_outputs(ids, fences, tenants, outcomes, workers, all_outputs) AS h;
        now := ingot.clock();
    END IF;
    RETURN QUERY
    WITH asked AS MATERIALIZED (
        SELECT a.id, a.fence, a.tenant, coalesce(a.said, 'succeeded') AS said, coalesce(a.retry, true) AS retry,
            coalesce(a.delay, 0) AS delay, a.exit_code, a.said_error, a.result, a.worker, a.place
        FROM unnest(ids, fences, tenants, outcomes, retries, delays, exit_codes, errors, results, workers)
            WITH ORDINALITY AS a (id, fence, tenant, said, retry, delay, exit_code, said_error, result, worker, place)
        WHERE a.place <> ALL (lacking)
    ),
    judged AS MATERIALIZED (
        SELECT CASE WHEN v.status = 'queued' THEN v.run_at_after END AS again_at, v.status, h.dedupe_key, h.tenant, h.type,
            h.id, h.fence, h.attempts, v.failures_after, v.crashes_after, h.cancel_requested, h.said, v.error, h.place,
            h.max_attempts, h.priority, h.limit_key, h.batch, h.run_at, h.told_at, h.worker_id, h.host, h.pid, h.started_at,
            h.retry, h.exit_code, h.result, h.percent, h.stage, h.ended_at
        FROM (
            -- The claim may be later than our clock: when that was set back, or for a caller who guessed the fence.
            SELECT l.*, greatest(now, l.started_at) AS ended_at,
                a.said, a.retry, a.delay, a.exit_code, a.said_error, a.result, a.place, ingot.spread() AS spread,
                CASE WHEN a.said IN ('failed', 'lost') THEN (
                    SELECT d FROM ingot.definitions AS d
                    WHERE d.type = l.type AND d.tenant IN (l.tenant, '00000000-0000-0000-0000-000000000000')
                    ORDER BY d.tenant DESC LIMIT 1
                ) END AS rules
            FROM (SELECT * FROM asked ORDER BY id) AS a CROSS JOIN LATERAL (
                SELECT l.* FROM ingot.leases AS l
                WHERE l.id = a.id AND l.fence = a.fence AND (a.tenant IS NULL OR a.tenant = l.tenant)
                    AND ingot.is_of(l.worker_id, a.worker)
                    AND (a.said <> 'lost' OR l.expires_at <= now)
                FOR UPDATE
            ) AS l
            -- A version written by a transaction that came after this one would put its event after ours.
            WHERE CASE WHEN l.changed_by > pg_current_xact_id() THEN ingot.begin_again() ELSE true END
            OFFSET 0
        ) AS h
        CROSS JOIN LATERAL ingot.judge(
            h.said, h.retry, h.delay, h.said_error, h.failures, h.crashes, h.max_attempts, h.cancel_requested,
            coalesce((h.rules).crash_cap, 3), coalesce((h.rules).first_seconds, 1), coalesce((h.rules).factor, 2),
            coalesce((h.rules).max_seconds, 3600), h.ended_at, h.spread
        ) AS v
    ),
    gone AS (
        -- By id, never by place: a row that was renewed after our snapshot is found where it is now.
        DELETE FROM ingot.leases AS l WHERE l.id = ANY (ARRAY(SELECT id FROM judged))
    ),
    ended AS (
        INSERT INTO ingot.outcomes (
            job, fence, tenant, worker_id, host, pid, started_at, outcome, retry, status_after, run_at, attempts, failures, crashes, max_attempts, priority,
            cancel_requested, finished_at, exit_code, error, result, percent, stage, told_at
        )
        SELECT id, fence, tenant, worker_id, host, pid, started_at, said, retry, status, coalesce(again_at, run_at), attempts, failures_after, crashes_after,
            max_attempts, priority, cancel_requested, ended_at, exit_code, error, result, percent, stage,
            told_at
        FROM judged
    ),
    noted AS (
        INSERT INTO ingot.endings (tenant, type, finished_at, size, jobs)
        SELECT tenant, type, ended_at, count(*), array_agg(id) FROM judged WHERE again_at IS NULL GROUP BY tenant, type, ended_at
    ),
    -- What few of them have.
    rest AS MATERIALIZED (
        SELECT * FROM judged WHERE again_at IS NOT NULL OR dedupe_key IS NOT NULL OR batch IS NOT NULL
    ),
    freed AS (
        DELETE FROM ingot.dedupe_keys AS k WHERE k.ctid = ANY (ARRAY(
            SELECT d.at FROM rest AS j CROSS JOIN LATERAL (
                SELECT d.ctid AS at FROM ingot.dedupe_keys AS d WHERE d.tenant = j.tenant AND d.key = j.dedupe_key LIMIT 1
            ) AS d
            WHERE j.dedupe_key IS NOT NULL AND j.status <> 'queued'
        ))
    ),
    due AS (
        INSERT INTO ingot.ready (
            id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts, fence, told_at
        )
        SELECT id, tenant, type, limit_key, batch, dedupe_key, priority, again_at, attempts, failures_after, crashes_after,
            max_attempts, fence, told_at
        FROM rest WHERE again_at <= now
    ),
    waiting AS (
        INSERT INTO ingot.later (
            id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts, fence, told_at
        )
        SELECT id, tenant, type, limit_key, batch, dedupe_key, priority, again_at, attempts, failures_after, crashes_after,
            max_attempts, fence, told_at
        FROM rest WHERE again_at > now
    ),
    alike AS MATERIALIZED (
        SELECT tenant, type, CASE WHEN again_at IS NOT NULL THEN limit_key END AS limit_key, said, status, attempts, failures_after, crashes_after, fence, again_at, error,
            cancel_requested, '["' || string_agg(id::text, '","') || '"]' AS ids, count(*) AS jobs, array_agg(place::integer) AS places,
            array_agg(ended_at - started_at) AS micros,
            min(CASE WHEN again_at <= now THEN ARRAY[priority, again_at] END) AS first
        FROM judged
        GROUP BY tenant, type, CASE WHEN again_at IS NOT NULL THEN limit_key END, said, status, attempts, failures_after, crashes_after, fence, again_at, error,
            cancel_requested
    ),
    told AS (
        INSERT INTO ingot.events (tenant, position, at, entries)
        SELECT tenant, ingot.position(pg_current_xact_id()), now, '[' || string_agg(
            CASE WHEN said IN ('failed', 'lost') THEN
                ingot.news('job.failed', ids, type, status, attempts, failures_after, crashes_after, fence, NULL,
                    again_at, status = 'queued', error, cancel_requested, NULL, NULL)
                || CASE WHEN status = 'queued' THEN '' ELSE ',' END
            ELSE '' END
            || CASE WHEN status <> 'queued' OR said NOT IN ('failed', 'lost') THEN
                ingot.news(
                    CASE status WHEN 'succeeded' THEN 'job.completed' WHEN 'queued' THEN 'job.updated' ELSE 'job.' || status END,
                    ids, type, status, attempts, failures_after, crashes_after, fence, NULL,
                    again_at, NULL, CASE WHEN status = 'dead' THEN error END, cancel_requested, NULL, NULL)
            ELSE '' END, ',') || ']'
        FROM alike GROUP BY tenant
        ON CONFLICT (tenant, position) DO UPDATE SET entries = ingot.then(events.entries, excluded.entries)
    ),
    batched AS (
        INSERT INTO ingot.batch_deltas (tenant, batch, status, jobs)
        SELECT tenant, batch, status, count(*) FROM rest WHERE batch IS NOT NULL AND status <> 'queued'
        GROUP BY tenant, batch, status
        RETURNING tenant, batch
    ),
    counted AS (
        INSERT INTO ingot.count_deltas (tenant, type, status, jobs)
        SELECT c.tenant, c.type, s.status, s.jobs
        FROM (SELECT tenant, type, status, sum(jobs) AS jobs FROM alike GROUP BY tenant, type, status) AS c
        CROSS JOIN LATERAL (VALUES ('running', -c.jobs), (c.status, c.jobs)) AS s (status, jobs)
    )
    SELECT places, status, attempts, again_at, type, tenant::text, limit_key, first, NULL::text[], NULL, said, micros FROM alike
    UNION ALL
    SELECT NULL, NULL, NULL, NULL, NULL, tenant::text, NULL, NULL, NULL, batch, NULL, NULL FROM batched
    UNION ALL
    SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, array_agg(id::text), NULL, NULL, NULL
    FROM judged AS j WHERE (SELECT EXISTS (SELECT FROM ingot.waits AS w WHERE w.open)) AND status <> 'queued'
        AND EXISTS (SELECT FROM ingot.waits AS w WHERE w.parent = j.id AND w.open)
    HAVING count(*) > 0;
    IF cardinality(makers) > 0 THEN
        PERFORM ingot.file_outputs(ids, fences, makers, now);
        RETURN QUERY SELECT ARRAY[l.place], NULL, NULL::integer, NULL::bigint, l.name, NULL, NULL, NULL::bigint[], NULL::text[],
            NULL, NULL, NULL::bigint[] FROM unnest(lacking, lacks) AS l (place, name);
    END IF;
END
$$;

-- Whether this is the worker, or an instance of the credential, that a call is restricted to.
CREATE OR REPLACE FUNCTION ingot.is_of(worker_id text, worker text) RETURNS boolean
LANGUAGE sql IMMUTABLE
AS $$ SELECT worker IS NULL OR worker_id = worker OR starts_with(worker_id, worker || '/') $$;

-- Begin again: the caller sends the batch once more.
CREATE OR REPLACE FUNCTION ingot.begin_again() RETURNS boolean
LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'a row changed after this transaction began' USING ERRCODE = 'serialization_failure';
END
$$;
