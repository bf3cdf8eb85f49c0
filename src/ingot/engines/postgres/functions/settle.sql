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
    held ingot.leases[];  -- The leases, and the places of the calls that end them.
    places integer[];
    held_ids uuid[];
    with_dedupe boolean;
    with_batch boolean;
    -- What `judge` says of each lease; NULL when all succeeded.
    statuses text[];
    new_failures integer[];
    new_crashes integer[];
    again_ats bigint[];
    new_errors text[];
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
    SELECT array_agg(l.lease), array_agg(a.place), array_agg(a.id), bool_or((l.lease).dedupe_key IS NOT NULL),
        bool_or((l.lease).batch IS NOT NULL)
    INTO held, places, held_ids, with_dedupe, with_batch
    FROM (
        SELECT a.id, a.place FROM unnest(ids) WITH ORDINALITY AS a (id, place) WHERE a.place <> ALL (lacking) ORDER BY a.id
    ) AS a
    CROSS JOIN LATERAL (
        SELECT l AS lease, l.changed_by FROM ingot.leases AS l
        WHERE l.id = a.id AND l.fence = fences[a.place] AND coalesce(l.tenant = tenants[a.place], true)
            AND ingot.is_of(l.worker_id, workers[a.place])
            AND (outcomes[a.place] IS DISTINCT FROM 'lost' OR l.expires_at <= now)
        FOR UPDATE
    ) AS l
    -- A version written by a transaction that came after this one would put its event after ours.
    WHERE CASE WHEN l.changed_by > pg_current_xact_id() THEN ingot.begin_again() ELSE true END;
    IF held IS NOT NULL THEN
        IF outcomes IS NOT NULL THEN
            SELECT array_agg(v.status), array_agg(v.failures_after), array_agg(v.crashes_after),
                array_agg(CASE WHEN v.status = 'queued' THEN v.run_at_after END), array_agg(v.error)
            INTO statuses, new_failures, new_crashes, again_ats, new_errors
            FROM (
                SELECT h.*, places[h.ordinality] AS place, coalesce(outcomes[places[h.ordinality]], 'succeeded') AS said,
                    ingot.spread() AS spread,
                    CASE WHEN outcomes[places[h.ordinality]] IN ('failed', 'lost') THEN (
                        SELECT d FROM ingot.definitions AS d
                        WHERE d.type = h.type AND d.tenant IN (h.tenant, '00000000-0000-0000-0000-000000000000')
                        ORDER BY d.tenant DESC LIMIT 1
                    ) END AS rules
                FROM unnest(held) WITH ORDINALITY AS h
                OFFSET 0
            ) AS h
            CROSS JOIN LATERAL ingot.judge(
                h.said, coalesce(retries[h.place], true), coalesce(delays[h.place], 0), errors[h.place], h.failures, h.crashes,
                h.max_attempts, h.cancel_requested, coalesce((h.rules).crash_cap, 3), coalesce((h.rules).first_seconds, 1),
                coalesce((h.rules).factor, 2), coalesce((h.rules).max_seconds, 3600), greatest(now, h.started_at), h.spread
            ) AS v;
        END IF;
        -- By id, never by place: a row that was renewed after our snapshot is found where it is now.
        DELETE FROM ingot.leases AS l WHERE l.id = ANY (held_ids);
        -- The claim may be later than our clock: when that was set back, or for a caller who guessed the fence.
        INSERT INTO ingot.outcomes (
            job, fence, tenant, worker_id, host, pid, started_at, outcome, retry, status_after, run_at, attempts, failures,
            crashes, max_attempts, priority, cancel_requested, finished_at, exit_code, error, result, percent, stage, told_at
        )
        SELECT h.id, h.fence, h.tenant, h.worker_id, h.host, h.pid, h.started_at, coalesce(outcomes[places[n]], 'succeeded'),
            coalesce(retries[places[n]], true), coalesce(statuses[n], 'succeeded'), coalesce(again_ats[n], h.run_at), h.attempts,
            coalesce(new_failures[n], h.failures), coalesce(new_crashes[n], h.crashes), h.max_attempts, h.priority,
            h.cancel_requested, greatest(now, h.started_at), exit_codes[places[n]], new_errors[n], results[places[n]], h.percent,
            h.stage, h.told_at
        FROM (SELECT h.*, h.ordinality AS n FROM unnest(held) WITH ORDINALITY AS h) AS h;
        INSERT INTO ingot.endings (tenant, type, finished_at, size, jobs)
        SELECT h.tenant, h.type, greatest(now, h.started_at), count(*), array_agg(h.id)
        FROM unnest(held) WITH ORDINALITY AS h WHERE again_ats[h.ordinality] IS NULL GROUP BY 1, 2, 3;
        IF with_dedupe THEN
            DELETE FROM ingot.dedupe_keys AS k WHERE k.ctid = ANY (ARRAY(
                SELECT d.at FROM unnest(held) WITH ORDINALITY AS h CROSS JOIN LATERAL (
                    SELECT d.ctid AS at FROM ingot.dedupe_keys AS d WHERE d.tenant = h.tenant AND d.key = h.dedupe_key LIMIT 1
                ) AS d
                WHERE h.dedupe_key IS NOT NULL AND again_ats[h.ordinality] IS NULL
            ));
        END IF;
        IF num_nonnulls(VARIADIC again_ats) > 0 THEN
            WITH again AS MATERIALIZED (
                SELECT h.*, h.ordinality AS n, again_ats[h.ordinality] AS again_at FROM unnest(held) WITH ORDINALITY AS h
                WHERE again_ats[h.ordinality] IS NOT NULL
            ),
            due AS (
                INSERT INTO ingot.ready (
                    id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts,
                    fence, told_at
                )
                SELECT id, tenant, type, limit_key, batch, dedupe_key, priority, again_at, attempts, new_failures[n], new_crashes[n],
                    max_attempts, fence, told_at
                FROM again WHERE again_at <= now
            )
            INSERT INTO ingot.later (
                id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts,
                fence, told_at
            )
            SELECT id, tenant, type, limit_key, batch, dedupe_key, priority, again_at, attempts, new_failures[n], new_crashes[n],
                max_attempts, fence, told_at
            FROM again WHERE again_at > now;
        END IF;
        RETURN QUERY
        WITH alike AS MATERIALIZED (
            SELECT tenant, type, CASE WHEN again_at IS NOT NULL THEN limit_key END AS limit_key, said, status, attempts,
                failures_after, crashes_after, fence, again_at, error, cancel_requested,
                '["' || string_agg(id::text, '","') || '"]' AS ids, count(*) AS jobs, array_agg(places[n]) AS places,
                array_agg(greatest(now, started_at) - started_at) AS micros,
                min(CASE WHEN again_at <= now THEN ARRAY[priority, again_at] END) AS first
            FROM (
                SELECT h.*, h.ordinality AS n, coalesce(outcomes[places[h.ordinality]], 'succeeded') AS said,
                    coalesce(statuses[h.ordinality], 'succeeded') AS status, again_ats[h.ordinality] AS again_at,
                    coalesce(new_failures[h.ordinality], h.failures) AS failures_after,
                    coalesce(new_crashes[h.ordinality], h.crashes) AS crashes_after, new_errors[h.ordinality] AS error
                FROM unnest(held) WITH ORDINALITY AS h
            ) AS h
            GROUP BY tenant, type, CASE WHEN again_at IS NOT NULL THEN limit_key END, said, status, attempts, failures_after,
                crashes_after, fence, again_at, error, cancel_requested
        ),
        told AS (
            INSERT INTO ingot.events (tenant, position, at, entries)
            SELECT tenant, ingot.position(pg_current_xact_id()), now, '[' || string_agg(ingot.news_of_end(said, ids, type, status,
                attempts, failures_after, crashes_after, fence, again_at, error, cancel_requested), ',') || ']'
            FROM alike GROUP BY tenant
            ON CONFLICT (tenant, position) DO UPDATE SET entries = ingot.then(events.entries, excluded.entries)
        ),
        counted AS (
            INSERT INTO ingot.count_deltas (tenant, type, status, jobs)
            SELECT c.tenant, c.type, s.status, s.jobs
            FROM (SELECT tenant, type, status, sum(jobs) AS jobs FROM alike GROUP BY tenant, type, status) AS c
            CROSS JOIN LATERAL (VALUES ('running', -c.jobs), (c.status, c.jobs)) AS s (status, jobs)
        )
        SELECT places, status, attempts, again_at, type, tenant::text, limit_key, first, NULL::text[], NULL, said, micros FROM alike;
        IF with_batch THEN
            RETURN QUERY
            WITH batched AS (
                INSERT INTO ingot.batch_deltas (tenant, batch, status, jobs)
                SELECT h.tenant, h.batch, coalesce(statuses[h.ordinality], 'succeeded'), count(*)
                FROM unnest(held) WITH ORDINALITY AS h WHERE h.batch IS NOT NULL AND again_ats[h.ordinality] IS NULL
                GROUP BY 1, 2, 3
                RETURNING tenant, batch
            )
            SELECT NULL::integer[], NULL, NULL::integer, NULL::bigint, NULL, tenant::text, NULL, NULL::bigint[], NULL::text[],
                batch, NULL, NULL::bigint[] FROM batched;
        END IF;
        IF EXISTS (SELECT FROM ingot.waits AS w WHERE w.open) THEN
            RETURN QUERY
            SELECT NULL::integer[], NULL, NULL::integer, NULL::bigint, NULL, NULL, NULL, NULL::bigint[], array_agg(h.id::text),
                NULL, NULL, NULL::bigint[]
            FROM unnest(held) WITH ORDINALITY AS h
            WHERE again_ats[h.ordinality] IS NULL AND EXISTS (SELECT FROM ingot.waits AS w WHERE w.parent = h.id AND w.open)
            HAVING count(*) > 0;
        END IF;
    END IF;
    IF cardinality(makers) > 0 THEN
        PERFORM ingot.file_outputs(ids, fences, makers, now);
        RETURN QUERY SELECT ARRAY[l.place], NULL, NULL::integer, NULL::bigint, l.name, NULL, NULL, NULL::bigint[], NULL::text[],
            NULL, NULL, NULL::bigint[] FROM unnest(lacking, lacks) AS l (place, name);
    END IF;
END
$$;

-- What the log says of attempts that ended alike: that they failed, where they did, and how their jobs stand then.
CREATE OR REPLACE FUNCTION ingot.news_of_end(
    said text, ids text, type text, status text, attempts integer, failures integer, crashes integer, fence bigint,
    again_at bigint, error text, cancel_requested boolean
) RETURNS text
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    failed text;
BEGIN
    IF said IN ('failed', 'lost') THEN
        failed := ingot.news('job.failed', ids, type, status, attempts, failures, crashes, fence, NULL, again_at,
            status = 'queued', error, cancel_requested, NULL, NULL);
        IF status = 'queued' THEN
            RETURN failed;
        END IF;
    END IF;
    RETURN coalesce(failed || ',', '') || ingot.news(
        CASE status WHEN 'succeeded' THEN 'job.completed' WHEN 'queued' THEN 'job.updated' ELSE 'job.' || status END,
        ids, type, status, attempts, failures, crashes, fence, NULL, again_at, NULL, CASE WHEN status = 'dead' THEN error END,
        cancel_requested, NULL, NULL);
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
