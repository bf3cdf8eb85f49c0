-- End the attempts that run under these fences, each as `judge` decides; other attempts are left out of the result.
-- Parameters that are NULL mean: succeeded, any tenant, any worker, no error and no result. An attempt with the outcome
-- lost is ended only if its lease has expired. Attempts with the same outcome share a result row: `places` are their
-- indexes in the parameters, counted from 1, and `micros` how long each ran. Rows without places list finished jobs that
-- others wait for (`parents`), and changed batches. An attempt that names an output that was not uploaded is not ended: it
-- gets a row of its own without a status, with the name of the output in `type`.
CREATE OR REPLACE FUNCTION ingot.settle(
    ids uuid[], fences bigint[], tenants uuid[], outcomes text[], retries boolean[], delays bigint[],
    exit_codes bigint[], errors text[], results bytea[], workers text[] DEFAULT NULL, all_outputs json[] DEFAULT NULL
) RETURNS TABLE (
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
SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
DECLARE
    now bigint := ingot.clock();
    producing_jobs uuid[] := '{}';
    missing_places integer[] := '{}';
    missing_names text[];
    ended_leases ingot.leases[];  -- The deleted leases, and their indexes in the parameters.
    places integer[];
    ended_ids uuid[];
    with_dedupe boolean;
    with_batch boolean;
    -- The verdict on each lease; NULL when all attempts succeeded.
    statuses text[];
    new_failures integer[];
    new_crashes integer[];
    next_run_ats bigint[];
    new_errors text[];
BEGIN
    IF NOT outcomes <@ ARRAY['succeeded', 'failed', 'timed_out', 'snoozed', 'released', 'lost'] THEN
        RAISE EXCEPTION 'outcomes must be succeeded, failed, timed_out, snoozed, released or lost' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF all_outputs IS NOT NULL OR EXISTS (SELECT FROM ingot.uploads AS u WHERE u.fence IS NOT NULL)
        OR EXISTS (SELECT FROM ingot.job_files AS f WHERE f.kind IN ('output', 'checkpoint')) THEN
        SELECT o.producing_jobs, o.missing_places, o.missing_names INTO producing_jobs, missing_places, missing_names
        FROM ingot.lock_outputs(ids, fences, tenants, outcomes, workers, all_outputs) AS o;
        now := ingot.clock();
    END IF;
    SELECT array_agg(l.lease), array_agg(a.place), array_agg(a.id), bool_or((l.lease).dedupe_key IS NOT NULL),
        bool_or((l.lease).batch IS NOT NULL)
    INTO ended_leases, places, ended_ids, with_dedupe, with_batch
    FROM (
        SELECT a.id, a.place FROM unnest(ids) WITH ORDINALITY AS a (id, place) WHERE a.place <> ALL (missing_places) ORDER BY a.id
    ) AS a
    CROSS JOIN LATERAL (
        SELECT l AS lease, l.changed_by FROM ingot.leases AS l
        WHERE l.id = a.id AND l.fence = fences[a.place] AND coalesce(l.tenant = tenants[a.place], true)
            AND ingot.matches_worker(l.worker_id, workers[a.place])
            AND (outcomes[a.place] IS DISTINCT FROM 'lost' OR l.expires_at <= now)
        FOR UPDATE
    ) AS l
    -- Our event must not come before that of a later transaction whose row version we change.
    WHERE CASE WHEN l.changed_by > pg_current_xact_id() THEN ingot.retry_transaction() ELSE true END;
    IF ended_leases IS NOT NULL THEN
        IF outcomes IS NOT NULL THEN
            SELECT array_agg(v.status), array_agg(v.failures_after), array_agg(v.crashes_after),
                array_agg(CASE WHEN v.status = 'queued' THEN v.run_at_after END), array_agg(v.error)
            INTO statuses, new_failures, new_crashes, next_run_ats, new_errors
            FROM (
                SELECT h.*, places[h.ordinality] AS place, coalesce(outcomes[places[h.ordinality]], 'succeeded') AS outcome,
                    ingot.random_fraction() AS random_fraction,
                    CASE WHEN outcomes[places[h.ordinality]] IN ('failed', 'timed_out', 'lost') THEN (
                        SELECT d FROM ingot.definitions AS d
                        WHERE d.type = h.type AND d.tenant IN (h.tenant, '00000000-0000-0000-0000-000000000000')
                        ORDER BY d.tenant DESC LIMIT 1
                    ) END AS rules
                FROM unnest(ended_leases) WITH ORDINALITY AS h
                OFFSET 0
            ) AS h
            CROSS JOIN LATERAL ingot.judge(
                h.outcome, coalesce(retries[h.place], true), coalesce(delays[h.place], 0), errors[h.place], h.failures, h.crashes,
                h.max_attempts, h.cancel_requested, coalesce((h.rules).crash_cap, 3), coalesce((h.rules).first_seconds, 1),
                coalesce((h.rules).factor, 2), coalesce((h.rules).max_seconds, 3600), greatest(now, h.started_at), h.random_fraction
            ) AS v;
        END IF;
        -- By id, never by ctid: a row that was renewed after our snapshot has moved.
        DELETE FROM ingot.leases AS l WHERE l.id = ANY (ended_ids);
        -- `started_at` may be later than our clock, if that was set back or the caller guessed the fence.
        INSERT INTO ingot.outcomes (
            job, fence, tenant, worker_id, host, pid, started_at, outcome, retry, status_after, run_at, attempts, failures,
            crashes, max_attempts, priority, cancel_requested, finished_at, exit_code, error, result, percent, stage, told_at
        )
        SELECT h.id, h.fence, h.tenant, h.worker_id, h.host, h.pid, h.started_at,
            ingot.stored_outcome(outcomes[places[n]], h.cancel_requested),
            coalesce(retries[places[n]], true), coalesce(statuses[n], 'succeeded'), coalesce(next_run_ats[n], h.run_at),
            h.attempts,
            coalesce(new_failures[n], h.failures), coalesce(new_crashes[n], h.crashes), h.max_attempts, h.priority,
            h.cancel_requested, greatest(now, h.started_at), exit_codes[places[n]], new_errors[n], results[places[n]], h.percent,
            h.stage, h.told_at
        FROM (SELECT h.*, h.ordinality AS n FROM unnest(ended_leases) WITH ORDINALITY AS h) AS h;
        INSERT INTO ingot.endings (tenant, type, finished_at, size, jobs)
        SELECT h.tenant, h.type, greatest(now, h.started_at), count(*), array_agg(h.id)
        FROM unnest(ended_leases) WITH ORDINALITY AS h WHERE next_run_ats[h.ordinality] IS NULL GROUP BY 1, 2, 3;
        IF with_dedupe THEN
            DELETE FROM ingot.dedupe_keys AS k WHERE k.ctid = ANY (ARRAY(
                SELECT d.at FROM unnest(ended_leases) WITH ORDINALITY AS h CROSS JOIN LATERAL (
                    SELECT d.ctid AS at FROM ingot.dedupe_keys AS d WHERE d.tenant = h.tenant AND d.key = h.dedupe_key LIMIT 1
                ) AS d
                WHERE h.dedupe_key IS NOT NULL AND next_run_ats[h.ordinality] IS NULL
            ));
        END IF;
        IF num_nonnulls(VARIADIC next_run_ats) > 0 THEN
            WITH requeued AS MATERIALIZED (
                SELECT h.*, h.ordinality AS n, next_run_ats[h.ordinality] AS next_run_at
                FROM unnest(ended_leases) WITH ORDINALITY AS h
                WHERE next_run_ats[h.ordinality] IS NOT NULL
            ),
            added_ready AS (
                INSERT INTO ingot.ready (
                    id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts,
                    fence, told_at
                )
                SELECT id, tenant, type, limit_key, batch, dedupe_key, priority, next_run_at, attempts, new_failures[n],
                    new_crashes[n], max_attempts, fence, told_at
                FROM requeued WHERE next_run_at <= now
            )
            INSERT INTO ingot.later (
                id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts,
                fence, told_at
            )
            SELECT id, tenant, type, limit_key, batch, dedupe_key, priority, next_run_at, attempts, new_failures[n],
                new_crashes[n], max_attempts, fence, told_at
            FROM requeued WHERE next_run_at > now;
        END IF;
        RETURN QUERY
        WITH outcome_groups AS MATERIALIZED (
            SELECT tenant, type, CASE WHEN next_run_at IS NOT NULL THEN limit_key END AS limit_key, outcome, status, attempts,
                failures_after, crashes_after, fence, next_run_at, error, cancel_requested,
                '["' || string_agg(id::text, '","') || '"]' AS ids, count(*) AS jobs, array_agg(places[n]) AS places,
                array_agg(greatest(now, started_at) - started_at) AS micros,
                min(CASE WHEN next_run_at <= now THEN ARRAY[priority, next_run_at] END) AS first
            FROM (
                SELECT h.*, h.ordinality AS n, ingot.stored_outcome(outcomes[places[h.ordinality]], h.cancel_requested) AS outcome,
                    coalesce(statuses[h.ordinality], 'succeeded') AS status, next_run_ats[h.ordinality] AS next_run_at,
                    coalesce(new_failures[h.ordinality], h.failures) AS failures_after,
                    coalesce(new_crashes[h.ordinality], h.crashes) AS crashes_after, new_errors[h.ordinality] AS error
                FROM unnest(ended_leases) WITH ORDINALITY AS h
            ) AS h
            GROUP BY tenant, type, CASE WHEN next_run_at IS NOT NULL THEN limit_key END, outcome, status, attempts,
                failures_after, crashes_after, fence, next_run_at, error, cancel_requested
        ),
        added_events AS (
            INSERT INTO ingot.events (tenant, position, at, entries)
            SELECT tenant, ingot.event_position(pg_current_xact_id()), now,
                '[' || string_agg(ingot.attempt_end_entries(outcome, ids, type, status,
                attempts, failures_after, crashes_after, fence, next_run_at, error, cancel_requested), ',') || ']'
            FROM outcome_groups GROUP BY tenant
            ON CONFLICT (tenant, position) DO UPDATE SET entries = ingot.join_entries(events.entries, excluded.entries)
        ),
        added_counts AS (
            INSERT INTO ingot.count_deltas (tenant, type, status, jobs)
            SELECT c.tenant, c.type, s.status, s.jobs
            FROM (SELECT tenant, type, status, sum(jobs) AS jobs FROM outcome_groups GROUP BY tenant, type, status) AS c
            CROSS JOIN LATERAL (VALUES ('running', -c.jobs), (c.status, c.jobs)) AS s (status, jobs)
        )
        SELECT places, status, attempts, next_run_at, type, tenant::text, limit_key, first, NULL::text[], NULL, outcome,
            micros FROM outcome_groups;
        IF with_batch THEN
            RETURN QUERY
            WITH added_batch_deltas AS (
                INSERT INTO ingot.batch_deltas (tenant, batch, status, jobs)
                SELECT h.tenant, h.batch, coalesce(statuses[h.ordinality], 'succeeded'), count(*)
                FROM unnest(ended_leases) WITH ORDINALITY AS h WHERE h.batch IS NOT NULL AND next_run_ats[h.ordinality] IS NULL
                GROUP BY 1, 2, 3
                RETURNING tenant, batch
            )
            SELECT NULL::integer[], NULL, NULL::integer, NULL::bigint, NULL, tenant::text, NULL, NULL::bigint[], NULL::text[],
                batch, NULL, NULL::bigint[] FROM added_batch_deltas;
        END IF;
        IF EXISTS (SELECT FROM ingot.waits AS w WHERE w.open) THEN
            RETURN QUERY
            SELECT NULL::integer[], NULL, NULL::integer, NULL::bigint, NULL, NULL, NULL, NULL::bigint[], array_agg(h.id::text),
                NULL, NULL, NULL::bigint[]
            FROM unnest(ended_leases) WITH ORDINALITY AS h
            WHERE next_run_ats[h.ordinality] IS NULL AND EXISTS (SELECT FROM ingot.waits AS w WHERE w.parent = h.id AND w.open)
            HAVING count(*) > 0;
        END IF;
    END IF;
    IF cardinality(producing_jobs) > 0 THEN
        PERFORM ingot.store_outputs(ids, fences, producing_jobs, now);
        RETURN QUERY SELECT ARRAY[l.place], NULL, NULL::integer, NULL::bigint, l.name, NULL, NULL, NULL::bigint[], NULL::text[],
            NULL, NULL, NULL::bigint[] FROM unnest(missing_places, missing_names) AS l (place, name);
    END IF;
END
$$;

-- The outcome under which an attempt is stored. A job that is released after a cancel request was canceled.
CREATE OR REPLACE FUNCTION ingot.stored_outcome(reported text, cancel_requested boolean) RETURNS text
LANGUAGE sql IMMUTABLE
AS $$ SELECT CASE WHEN reported = 'released' AND cancel_requested THEN 'canceled' ELSE coalesce(reported, 'succeeded') END $$;

-- The event log entries of attempts with the same outcome: their failure, if they failed, and the new status of their jobs.
CREATE OR REPLACE FUNCTION ingot.attempt_end_entries(
    outcome text, ids text, type text, status text, attempts integer, failures integer, crashes integer, fence bigint,
    next_run_at bigint, error text, cancel_requested boolean
) RETURNS text
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    failed_entry text;
BEGIN
    IF outcome IN ('failed', 'timed_out', 'lost') THEN
        failed_entry := ingot.job_event_entry('job.failed', ids, type, status, attempts, failures, crashes, fence, NULL,
            next_run_at, status = 'queued', error, cancel_requested, NULL, NULL);
        IF status = 'queued' THEN
            RETURN failed_entry;
        END IF;
    END IF;
    RETURN coalesce(failed_entry || ',', '') || ingot.job_event_entry(
        CASE status WHEN 'succeeded' THEN 'job.completed' WHEN 'queued' THEN 'job.updated' ELSE 'job.' || status END,
        ids, type, status, attempts, failures, crashes, fence, NULL, next_run_at, NULL, CASE WHEN status = 'dead' THEN error END,
        cancel_requested, NULL, NULL);
END
$$;

-- Whether a worker is the one that a call is restricted to, or an instance of that credential. NULL restricts nothing.
CREATE OR REPLACE FUNCTION ingot.matches_worker(worker_id text, required_worker text) RETURNS boolean
LANGUAGE sql IMMUTABLE
AS $$ SELECT required_worker IS NULL OR worker_id = required_worker OR starts_with(worker_id, required_worker || '/') $$;

-- Fail the transaction so that the caller sends the batch again.
CREATE OR REPLACE FUNCTION ingot.retry_transaction() RETURNS boolean
LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'a row changed after this transaction began' USING ERRCODE = 'serialization_failure';
END
$$;
