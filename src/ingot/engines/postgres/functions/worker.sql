-- Functions for the role of a worker. The tenant is the one that the role was created for, whatever the arguments say.
CREATE OR REPLACE FUNCTION ingot.worker_tenant() RETURNS uuid
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    tenant_id uuid := (SELECT w.tenant FROM ingot.worker_roles AS w WHERE w.role = session_user);
BEGIN
    IF tenant_id IS NULL THEN
        RAISE EXCEPTION 'the role % is not a worker of any tenant', session_user USING ERRCODE = 'insufficient_privilege';
    END IF;
    IF NOT EXISTS (SELECT FROM ingot.home AS h JOIN pg_control_system() AS s ON s.system_identifier = h.server) THEN
        RAISE EXCEPTION 'the database was restored on another server and waits for a migration';
    END IF;
    RETURN tenant_id;
END
$$;

-- The worker ID of an instance of this role. It begins with the role, so no role can act as a worker of another one.
CREATE OR REPLACE FUNCTION ingot.worker_name(instance text) RETURNS text
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    PERFORM ingot.expect(length(instance) BETWEEN 1 AND 192 AND strpos(instance, '/') = 0,
        'instance must have 1 to 192 characters and no /');
    RETURN session_user || '/' || instance;
END
$$;

-- Refuse a call of a worker if a condition is not true.
CREATE OR REPLACE FUNCTION ingot.expect(condition boolean, message text) RETURNS void
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    IF condition IS NOT TRUE THEN
        RAISE EXCEPTION '%', message USING ERRCODE = 'invalid_parameter_value';
    END IF;
END
$$;

-- Refuse an array with several dimensions or another lower bound than 1: its indexes do not match those of `unnest`.
CREATE OR REPLACE FUNCTION ingot.expect_list(list anyarray) RETURNS void
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    PERFORM ingot.expect(list IS NULL OR cardinality(list) = 0 OR array_ndims(list) = 1 AND array_lower(list, 1) = 1,
        'arrays must have one dimension and begin at index 1');
END
$$;

-- Refuse JSON that not every decoder can read: invalid Unicode, numbers out of the range of a double, or too deep nesting.
-- The type `json` is used because it keeps all members with the same name.
CREATE OR REPLACE FUNCTION ingot.expect_readable(text_of_json bytea) RETURNS void
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    PERFORM ingot.expect(kind NOT IN ('array', 'object') OR depth < 200, 'a result must not be nested deeper than 200 levels'),
        CASE kind WHEN 'number' THEN (part #>> '{}')::double precision WHEN 'string' THEN length(part #>> '{}') END
    FROM (
        WITH RECURSIVE parts AS (
            SELECT convert_from(text_of_json, 'UTF8')::json AS part, 0 AS depth
            UNION ALL
            SELECT inner_part, p.depth + 1 FROM parts AS p CROSS JOIN LATERAL (
                SELECT e.value FROM json_each(CASE json_typeof(p.part) WHEN 'object' THEN p.part END) AS e
                UNION ALL
                SELECT e.value FROM json_array_elements(CASE json_typeof(p.part) WHEN 'array' THEN p.part END) AS e
            ) AS e (inner_part)
            WHERE p.depth < 200
        )
        SELECT part, depth, json_typeof(part) AS kind FROM parts
    ) AS p;
END
$$;

-- The first limit key with ready jobs of a type, after a key or of all. Two branches, because OR would read the whole lane.
CREATE OR REPLACE FUNCTION ingot.next_limit_key(of_tenant uuid, of_type text, after text) RETURNS text
LANGUAGE sql STABLE
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
    (
        SELECT r.limit_key FROM ingot.ready AS r
        WHERE after IS NULL AND r.type = of_type AND r.tenant = of_tenant ORDER BY r.limit_key LIMIT 1
    )
    UNION ALL
    (
        SELECT r.limit_key FROM ingot.ready AS r
        WHERE r.type = of_type AND r.tenant = of_tenant AND r.limit_key > after ORDER BY r.limit_key LIMIT 1
    )
$$;

-- The lanes of a tenant with ready jobs of these types, found by skipping from key to key; at most 1000.
CREATE OR REPLACE FUNCTION ingot.ready_lanes(of_tenant uuid, of_types text[]) RETURNS TABLE (type text, key text)
LANGUAGE sql STABLE
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
    SELECT t.type, k.key FROM unnest(of_types) AS t (type) CROSS JOIN LATERAL (
        WITH RECURSIVE keys AS (
            SELECT ingot.next_limit_key(of_tenant, t.type, NULL) AS key
            UNION ALL
            SELECT ingot.next_limit_key(of_tenant, t.type, k.key) FROM keys AS k WHERE k.key IS NOT NULL
        )
        SELECT k.key FROM keys AS k WHERE k.key IS NOT NULL LIMIT 1000
    ) AS k
    LIMIT 1000
$$;

-- Where a scan of each of these lanes ends that begins after a position and reads at most this many rows.
CREATE OR REPLACE FUNCTION ingot.scan_ends(
    of_tenant uuid, lanes text[], keys text[], after_priority smallint, after_run_at bigint, after_id uuid, rows_max integer
) RETURNS TABLE (lane bigint, priority smallint, run_at bigint, id uuid)
LANGUAGE sql STABLE
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
    SELECT l.lane, coalesce(e.priority, 32767::smallint), coalesce(e.run_at, 0),
        coalesce(e.id, '00000000-0000-0000-0000-000000000000')
    FROM unnest(lanes, keys) WITH ORDINALITY AS l (type, key, lane) LEFT JOIN LATERAL (
        SELECT r.priority, r.run_at, r.id FROM ingot.ready AS r
        WHERE r.type = l.type AND r.tenant = of_tenant AND r.limit_key = l.key
            AND (r.priority, r.run_at, r.id) > (after_priority, after_run_at, after_id)
        ORDER BY r.priority, r.run_at, r.id OFFSET rows_max LIMIT 1
    ) AS e ON true
$$;

-- Lease ready jobs of these types to an instance. From the third column on, the result is that of `ingot.claim`. For a single
-- type without limit keys the scan begins after a given position, so that it skips deleted rows of jobs claimed before.
-- Without files, jobs with input files or with payloads in blobs are left to other workers; a claim then reads at most
-- {jobs.checks.CLAIM_SCAN_MAX} ready jobs, because those that are left stay in front of the others.
CREATE OR REPLACE FUNCTION ingot.worker_claim(
    types text[], instance text, host text, pid bigint, jobs integer, lease_length bigint,
    after_priority smallint DEFAULT NULL, after_run_at bigint DEFAULT NULL, after_id uuid DEFAULT NULL,
    with_files boolean DEFAULT true
) RETURNS TABLE (
    type text, expires_at bigint, id text, priority smallint, run_at bigint, attempts integer, failures integer,
    crashes integer, max_attempts integer, fence bigint, started_at bigint, payload bytea, metadata bytea, created_at bigint,
    source text, depth integer, timeout_seconds double precision, texts text[], tags text[], last_error text, after text[],
    runs_anyway boolean, inputs text
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    tenant uuid := ingot.worker_tenant();
    worker_id text := ingot.worker_name(instance);
    distinct_types text[] := ARRAY(SELECT DISTINCT t FROM unnest(types) AS t WHERE t IS NOT NULL);
    lanes text[];
    keys text[];
    lane_count integer;
    end_priorities smallint[];
    end_run_ats bigint[];
    end_ids uuid[];
    is_hinted boolean := after_priority IS NOT NULL AND after_run_at IS NOT NULL AND after_id IS NOT NULL
        AND cardinality(distinct_types) = 1 AND ingot.next_limit_key(tenant, distinct_types[1], '') IS NULL;
BEGIN
    -- A claim can see changes of transactions that began later, and its event would come before theirs.
    PERFORM ingot.expect(pg_current_xact_id_if_assigned() IS NULL, 'a claim must be the first call of its transaction');
    PERFORM ingot.expect(cardinality(distinct_types) BETWEEN 1 AND {jobs.checks.CLAIM_TYPES_MAX},
        'a claim must name 1 to {jobs.checks.CLAIM_TYPES_MAX} types');
    PERFORM ingot.expect(lease_length BETWEEN 1000000 AND {jobs.checks.LEASE_MICROS_MAX},
        'lease lengths must be between a second and a week, in microseconds');
    PERFORM ingot.expect(host IS NULL OR length(host) <= {jobs.checks.KEY_CHARS_MAX},
        'host must have at most {jobs.checks.KEY_CHARS_MAX} characters');
    PERFORM ingot.expect(pid IS NULL OR pid BETWEEN 0 AND {kernel.validation.NUMBER_MAX}, 'pid must be between 0 and 2^53');
    PERFORM ingot.expect(with_files IS NOT NULL, 'with_files must be true or false');
    -- A draining worker gets no jobs.
    IF EXISTS (SELECT FROM ingot.workers AS w WHERE w.tenant = tenant AND w.id = worker_id AND w.draining) THEN
        RETURN;
    END IF;
    IF is_hinted THEN
        lanes := distinct_types;
        keys := ARRAY[''];
        lane_count := 1;
    ELSE
        SELECT array_agg(l.type), array_agg(l.key), count(*) INTO lanes, keys, lane_count
        FROM ingot.ready_lanes(tenant, distinct_types) AS l;
        after_priority := 0;
        after_run_at := 0;
        after_id := '00000000-0000-0000-0000-000000000000';
    END IF;
    IF with_files THEN
        end_priorities := array_fill(32767::smallint, ARRAY[lane_count]);
        end_run_ats := array_fill(0::bigint, ARRAY[lane_count]);
        end_ids := array_fill('00000000-0000-0000-0000-000000000000'::uuid, ARRAY[lane_count]);
    ELSE
        SELECT array_agg(e.priority ORDER BY e.lane), array_agg(e.run_at ORDER BY e.lane), array_agg(e.id ORDER BY e.lane)
        INTO end_priorities, end_run_ats, end_ids
        FROM ingot.scan_ends(
            tenant, lanes, keys, after_priority, after_run_at, after_id,
            {jobs.checks.CLAIM_SCAN_MAX} / greatest(lane_count, 1)
        ) AS e;
    END IF;
    RETURN QUERY
    SELECT lanes[c.lane], c.started_at + lease_length, c.id, c.priority, c.run_at, c.attempts, c.failures, c.crashes,
        c.max_attempts, c.fence, c.started_at, c.payload, c.metadata, c.created_at, c.source, c.depth, c.timeout_seconds,
        c.texts, c.tags, c.last_error, c.after, c.runs_anyway, c.inputs
    FROM ingot.claim(
        lanes, array_fill(tenant, ARRAY[lane_count]), keys, array_fill(after_priority, ARRAY[lane_count]),
        array_fill(after_run_at, ARRAY[lane_count]), array_fill(after_id, ARRAY[lane_count]),
        end_priorities, end_run_ats, end_ids,
        array_fill(1, ARRAY[lane_count]), array_fill(jobs, ARRAY[lane_count]), array_fill(jobs, ARRAY[lane_count]),
        ARRAY[worker_id], ARRAY[host], ARRAY[pid], ARRAY[jobs], ARRAY[lease_length],
        CASE WHEN lane_count > 1 THEN array_fill(least(jobs, greatest(8, 2 * jobs / lane_count + 1)), ARRAY[lane_count]) END,
        with_files
    ) AS c
    WHERE c.claimer > 0;
    -- After the claim, because the first write assigns the transaction ID; and only if the last record is old.
    IF EXISTS (
        SELECT FROM unnest(distinct_types) AS t WHERE NOT EXISTS (
            SELECT FROM ingot.askers AS a WHERE a.type = t AND a.tenant = tenant
                AND CASE WHEN with_files THEN a.files_at ELSE a.at END > ingot.clock() - 10000000
        )
    ) THEN
        PERFORM ingot.record_askers(distinct_types, array_fill(tenant, ARRAY[cardinality(distinct_types)]), with_files);
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION ingot.worker_renew(
    ids uuid[], fences bigint[], lease_lengths bigint[], percents double precision[], stages text[]
) RETURNS TABLE (place integer, expires_at bigint, cancel_requested boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    tenant uuid := ingot.worker_tenant();
BEGIN
    PERFORM ingot.expect(cardinality(ids) <= {jobs.checks.BATCH_JOBS_MAX},
        'a call must renew at most {jobs.checks.BATCH_JOBS_MAX} leases');
    PERFORM ingot.expect((SELECT count(DISTINCT i) FROM unnest(ids) AS i) = cardinality(ids), 'every job must be named once');
    PERFORM ingot.expect(cardinality(lease_lengths) = cardinality(ids), 'lease_lengths must have one element for each job');
    PERFORM ingot.expect(l BETWEEN 1000000 AND {jobs.checks.LEASE_MICROS_MAX},
        'lease lengths must be between a second and a week, in microseconds')
    FROM unnest(lease_lengths) AS l;
    PERFORM ingot.expect(p IS NULL OR p BETWEEN 0 AND 100, 'percents must be between 0 and 100') FROM unnest(percents) AS p;
    PERFORM ingot.expect(s IS NULL OR length(s) <= {jobs.checks.STAGE_CHARS_MAX},
        'stages must have at most {jobs.checks.STAGE_CHARS_MAX} characters') FROM unnest(stages) AS s;
    RETURN QUERY
    SELECT r.place, r.expires_at, r.cancel_requested FROM ingot.renew(
        ids, fences, array_fill(tenant, ARRAY[cardinality(ids)]), lease_lengths, percents, stages,
        array_fill(session_user::text, ARRAY[cardinality(ids)])
    ) AS r;
END
$$;

-- End attempts. Results are JSON texts; long errors are truncated.
CREATE OR REPLACE FUNCTION ingot.worker_settle(
    ids uuid[], fences bigint[], outcomes text[], retries boolean[], delays bigint[], exit_codes bigint[],
    errors text[], results bytea[]
) RETURNS TABLE (place integer, status text, attempts integer, run_at bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
    tenant uuid := ingot.worker_tenant();
BEGIN
    PERFORM ingot.expect(cardinality(ids) <= {jobs.checks.BATCH_JOBS_MAX},
        'a call must settle at most {jobs.checks.BATCH_JOBS_MAX} attempts');
    PERFORM ingot.expect((SELECT count(DISTINCT i) FROM unnest(ids) AS i) = cardinality(ids), 'every job must be named once');
    PERFORM ingot.expect(cardinality(outcomes) = cardinality(ids), 'outcomes must have one element for each job');
    PERFORM ingot.expect(o IN ('succeeded', 'failed', 'timed_out', 'snoozed', 'released'),
        'outcomes must be succeeded, failed, timed_out, snoozed or released')
    FROM unnest(outcomes) AS o;
    PERFORM ingot.expect(d IS NULL OR d BETWEEN 0 AND {jobs.checks.DELAY_MICROS_MAX},
        'delays must be between 0 and {jobs.checks.DELAY_DAYS_MAX} days, in microseconds')
    FROM unnest(delays) AS d;
    PERFORM ingot.expect(c IS NULL OR c BETWEEN -{kernel.validation.NUMBER_MAX} AND {kernel.validation.NUMBER_MAX},
        'exit codes must be between -2^53 and 2^53')
    FROM unnest(exit_codes) AS c;
    PERFORM ingot.expect(length(r) <= {jobs.checks.PAYLOAD_BYTES_MAX},
        'results must have at most {jobs.checks.PAYLOAD_BYTES_MAX} bytes'), ingot.expect_readable(r)
    FROM unnest(results) AS r WHERE r IS NOT NULL;
    PERFORM ingot.expect(o = 'succeeded', 'only succeeded attempts can have a result')
    FROM unnest(outcomes, results) AS s (o, r) WHERE r IS NOT NULL;
    PERFORM ingot.settle(
        ids, fences, array_fill(tenant, ARRAY[cardinality(ids)]), outcomes, retries, delays, exit_codes,
        ARRAY(SELECT left(e, {jobs.checks.ERROR_CHARS_MAX}) FROM unnest(errors) WITH ORDINALITY AS u (e, n) ORDER BY n), results,
        array_fill(session_user::text, ARRAY[cardinality(ids)])
    );
    -- Read the stored outcomes, so that a repeated call returns the same.
    RETURN QUERY
    SELECT a.place::integer, o.status_after, o.attempts, CASE WHEN o.status_after = 'queued' THEN o.run_at END
    FROM unnest(ids, fences, outcomes) WITH ORDINALITY AS a (id, fence, outcome, place)
    JOIN ingot.outcomes AS o ON o.job = a.id AND o.fence = a.fence AND o.tenant = tenant
        AND o.outcome = ingot.stored_outcome(a.outcome, o.outcome = 'canceled')
        AND ingot.matches_worker(o.worker_id, session_user::text)
    ORDER BY a.place;
END
$$;
