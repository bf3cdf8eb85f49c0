-- What the role of a worker may call. Its tenant is the one its role was made for, whatever it says.
CREATE OR REPLACE FUNCTION ingot.worker_tenant() RETURNS uuid
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    found uuid := (SELECT w.tenant FROM ingot.worker_roles AS w WHERE w.role = session_user);
BEGIN
    IF found IS NULL THEN
        RAISE EXCEPTION 'the role % is no worker of any tenant', session_user USING ERRCODE = 'insufficient_privilege';
    END IF;
    IF NOT EXISTS (SELECT FROM ingot.home AS h JOIN pg_control_system() AS s ON s.system_identifier = h.server) THEN
        RAISE EXCEPTION 'the database was restored on another server and waits for a migration';
    END IF;
    RETURN found;
END
$$;

-- What a worker of this role is called: nobody else can speak as it, and it as nobody else.
CREATE OR REPLACE FUNCTION ingot.worker_name(instance text) RETURNS text
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    PERFORM ingot.expect(length(instance) BETWEEN 1 AND 192 AND strpos(instance, '/') = 0,
        'the name of an instance has 1 to 192 characters, and no / among them');
    RETURN session_user || '/' || instance;
END
$$;

-- Refuse a call of a worker: nothing of it is done.
CREATE OR REPLACE FUNCTION ingot.expect(holds boolean, otherwise text) RETURNS void
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    IF holds IS NOT TRUE THEN
        RAISE EXCEPTION '%', otherwise USING ERRCODE = 'invalid_parameter_value';
    END IF;
END
$$;

-- Refuse an array that is no plain list: one in rows, or counted from elsewhere, is not what `unnest` makes of it.
CREATE OR REPLACE FUNCTION ingot.expect_list(list anyarray) RETURNS void
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    PERFORM ingot.expect(list IS NULL OR cardinality(list) = 0 OR array_ndims(list) = 1 AND array_lower(list, 1) = 1,
        'an array is one list, counted from 1');
END
$$;

-- Refuse JSON that not every reader can read: text that is no Unicode, numbers beyond a float, nested too deep. The type
-- `json` keeps what stands there twice under one name.
CREATE OR REPLACE FUNCTION ingot.expect_readable(text_of_json bytea) RETURNS void
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    PERFORM ingot.expect(kind NOT IN ('array', 'object') OR depth < 200, 'a result is nested at most 200 levels deep'),
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

-- The first key of ready work of a type after one, or the first of all. Two statements: an OR would read the whole lane.
CREATE OR REPLACE FUNCTION ingot.next_key(of_tenant uuid, of_type text, after text) RETURNS text
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

-- The lanes of a tenant that have ready work of these types, found by jumping from key to key; no more than some.
CREATE OR REPLACE FUNCTION ingot.lanes_of(of_tenant uuid, of_types text[]) RETURNS TABLE (type text, key text)
LANGUAGE sql STABLE
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
    SELECT t.type, k.key FROM unnest(of_types) AS t (type) CROSS JOIN LATERAL (
        WITH RECURSIVE keys AS (
            SELECT ingot.next_key(of_tenant, t.type, NULL) AS key
            UNION ALL
            SELECT ingot.next_key(of_tenant, t.type, k.key) FROM keys AS k WHERE k.key IS NOT NULL
        )
        SELECT k.key FROM keys AS k WHERE k.key IS NOT NULL LIMIT 1000
    ) AS k
    LIMIT 1000
$$;

-- Lease ready jobs of these types to an instance. From the third on, the columns are those of `ingot.claim`. Of one type
-- without limit keys, the scan begins after a position that is given: what was taken before it is not walked over again.
CREATE OR REPLACE FUNCTION ingot.worker_claim(
    types text[], instance text, host text, pid bigint, jobs integer, lease_length bigint,
    after_priority smallint DEFAULT NULL, after_run_at bigint DEFAULT NULL, after_id uuid DEFAULT NULL
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
    wanted text[] := ARRAY(SELECT DISTINCT t FROM unnest(types) AS t WHERE t IS NOT NULL);
    lanes text[];
    keys text[];
    many integer;
    hinted boolean := after_priority IS NOT NULL AND after_run_at IS NOT NULL AND after_id IS NOT NULL
        AND cardinality(wanted) = 1 AND ingot.next_key(tenant, wanted[1], '') IS NULL;
BEGIN
    -- A claim can see what came after its transaction began, and would tell of it before.
    PERFORM ingot.expect(pg_current_xact_id_if_assigned() IS NULL, 'a claim is the first call of its transaction');
    PERFORM ingot.expect(cardinality(wanted) BETWEEN 1 AND {jobs.checks.CLAIM_TYPES_MAX}, 'a claim names 1 to {jobs.checks.CLAIM_TYPES_MAX} types');
    PERFORM ingot.expect(lease_length BETWEEN 1000000 AND {jobs.checks.LEASE_MICROS_MAX}, 'a lease is for a second to a week, in microseconds');
    PERFORM ingot.expect(host IS NULL OR length(host) <= {jobs.checks.KEY_CHARS_MAX}, 'a host has at most {jobs.checks.KEY_CHARS_MAX} characters');
    PERFORM ingot.expect(pid IS NULL OR pid BETWEEN 0 AND {kernel.validation.NUMBER_MAX}, 'a pid is a number from 0 to 2^53');
    -- One that is to take no more gets nothing.
    IF EXISTS (SELECT FROM ingot.workers AS w WHERE w.tenant = tenant AND w.id = worker_id AND w.draining) THEN
        RETURN;
    END IF;
    IF hinted THEN
        lanes := wanted;
        keys := ARRAY[''];
        many := 1;
    ELSE
        SELECT array_agg(l.type), array_agg(l.key), count(*) INTO lanes, keys, many FROM ingot.lanes_of(tenant, wanted) AS l;
        after_priority := 0;
        after_run_at := 0;
        after_id := '00000000-0000-0000-0000-000000000000';
    END IF;
    RETURN QUERY
    SELECT lanes[c.lane], c.started_at + lease_length, c.id, c.priority, c.run_at, c.attempts, c.failures, c.crashes,
        c.max_attempts, c.fence, c.started_at, c.payload, c.metadata, c.created_at, c.source, c.depth, c.timeout_seconds,
        c.texts, c.tags, c.last_error, c.after, c.runs_anyway, c.inputs
    FROM ingot.claim(
        lanes, array_fill(tenant, ARRAY[many]), keys, array_fill(after_priority, ARRAY[many]),
        array_fill(after_run_at, ARRAY[many]), array_fill(after_id, ARRAY[many]), array_fill(32767::smallint, ARRAY[many]),
        array_fill(0::bigint, ARRAY[many]), array_fill('00000000-0000-0000-0000-000000000000'::uuid, ARRAY[many]),
        array_fill(1, ARRAY[many]), array_fill(jobs, ARRAY[many]), array_fill(jobs, ARRAY[many]),
        ARRAY[worker_id], ARRAY[host], ARRAY[pid], ARRAY[jobs], ARRAY[lease_length],
        CASE WHEN many > 1 THEN array_fill(least(jobs, greatest(8, 2 * jobs / many + 1)), ARRAY[many]) END
    ) AS c
    WHERE c.asker > 0;
    -- After the claim, since whatever is written gives the transaction its id; and not at every claim.
    IF EXISTS (
        SELECT FROM unnest(wanted) AS t WHERE NOT EXISTS (
            SELECT FROM ingot.askers AS a WHERE a.type = t AND a.tenant = tenant AND a.at > ingot.clock() - 10000000
        )
    ) THEN
        PERFORM ingot.note_askers(wanted, array_fill(tenant, ARRAY[cardinality(wanted)]));
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
    PERFORM ingot.expect(cardinality(ids) <= {jobs.checks.BATCH_JOBS_MAX}, 'a call renews at most {jobs.checks.BATCH_JOBS_MAX} leases');
    PERFORM ingot.expect((SELECT count(DISTINCT i) FROM unnest(ids) AS i) = cardinality(ids), 'every job is named once');
    PERFORM ingot.expect(cardinality(lease_lengths) = cardinality(ids), 'every lease has its length');
    PERFORM ingot.expect(l BETWEEN 1000000 AND {jobs.checks.LEASE_MICROS_MAX}, 'a lease is for a second to a week, in microseconds')
    FROM unnest(lease_lengths) AS l;
    PERFORM ingot.expect(p IS NULL OR p BETWEEN 0 AND 100, 'a percent goes from 0 to 100') FROM unnest(percents) AS p;
    PERFORM ingot.expect(s IS NULL OR length(s) <= {jobs.checks.STAGE_CHARS_MAX}, 'a stage has at most {jobs.checks.STAGE_CHARS_MAX} characters') FROM unnest(stages) AS s;
    RETURN QUERY
    SELECT r.place, r.expires_at, r.cancel_requested FROM ingot.renew(
        ids, fences, array_fill(tenant, ARRAY[cardinality(ids)]), lease_lengths, percents, stages,
        array_fill(session_user::text, ARRAY[cardinality(ids)])
    ) AS r;
END
$$;

-- A result is JSON text; an error that is too long is cut.
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
    PERFORM ingot.expect(cardinality(ids) <= {jobs.checks.BATCH_JOBS_MAX}, 'a call settles at most {jobs.checks.BATCH_JOBS_MAX} attempts');
    PERFORM ingot.expect((SELECT count(DISTINCT i) FROM unnest(ids) AS i) = cardinality(ids), 'every job is named once');
    PERFORM ingot.expect(cardinality(outcomes) = cardinality(ids), 'every attempt has its outcome');
    PERFORM ingot.expect(o IN ('succeeded', 'failed', 'snoozed', 'released'),
        'an attempt ends as succeeded, failed, snoozed or released')
    FROM unnest(outcomes) AS o;
    PERFORM ingot.expect(d IS NULL OR d BETWEEN 0 AND {jobs.checks.DELAY_MICROS_MAX}, 'a delay goes from 0 to {jobs.checks.DELAY_DAYS_MAX} days in microseconds')
    FROM unnest(delays) AS d;
    PERFORM ingot.expect(c IS NULL OR c BETWEEN -{kernel.validation.NUMBER_MAX} AND {kernel.validation.NUMBER_MAX}, 'an exit code is within 2^53')
    FROM unnest(exit_codes) AS c;
    PERFORM ingot.expect(length(r) <= {jobs.checks.PAYLOAD_BYTES_MAX}, 'a result has at most {jobs.checks.PAYLOAD_BYTES_MAX} bytes'), ingot.expect_readable(r)
    FROM unnest(results) AS r WHERE r IS NOT NULL;
    PERFORM ingot.expect(o = 'succeeded', 'a result comes only with success')
    FROM unnest(outcomes, results) AS s (o, r) WHERE r IS NOT NULL;
    PERFORM ingot.settle(
        ids, fences, array_fill(tenant, ARRAY[cardinality(ids)]), outcomes, retries, delays, exit_codes,
        ARRAY(SELECT left(e, {jobs.checks.ERROR_CHARS_MAX}) FROM unnest(errors) WITH ORDINALITY AS u (e, n) ORDER BY n), results,
        array_fill(session_user::text, ARRAY[cardinality(ids)])
    );
    -- The same settle again gets the same answer.
    RETURN QUERY
    SELECT a.place::integer, o.status_after, o.attempts, CASE WHEN o.status_after = 'queued' THEN o.run_at END
    FROM unnest(ids, fences, outcomes) WITH ORDINALITY AS a (id, fence, said, place)
    JOIN ingot.outcomes AS o ON o.job = a.id AND o.fence = a.fence AND o.tenant = tenant AND o.outcome = a.said
        AND ingot.is_of(o.worker_id, session_user::text)
    ORDER BY a.place;
END
$$;
