-- What an application calls inside its own transaction: the job or the event is there when that commits, and not otherwise.
--
-- Whatever such a transaction holds it may hold for long. So that nobody waits for it who need not, it passes a gate for
-- each key that it takes, alone: an advisory lock until its end. Servers pass the same gates together with each other, and
-- try: whom an application keeps out is told so, and those who were asked for at the same time go on.

-- The role that asks: the one that was set, which only its members can do, or else the one that logged in.
CREATE OR REPLACE FUNCTION ingot.app_role() RETURNS name
LANGUAGE sql STABLE
AS $$ SELECT CASE WHEN current_setting('role') = 'none' THEN session_user ELSE current_setting('role')::name END $$;

-- The tenant that it was let into, which is not removed before the transaction has ended.
CREATE OR REPLACE FUNCTION ingot.app_tenant() RETURNS uuid
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    who name := ingot.app_role();
    known uuid := (SELECT a.tenant FROM ingot.app_roles AS a WHERE a.role = who);
BEGIN
    PERFORM FROM ingot.tenants AS t WHERE t.id = known FOR KEY SHARE;
    IF NOT FOUND THEN
        PERFORM ingot.refuse_app('42501', 'forbidden', format('the role %s was let into no tenant', who),
            'Let it in: `ingot database let-in ROLE --tenant SLUG`.');
    END IF;
    IF NOT EXISTS (SELECT FROM ingot.home AS h JOIN pg_control_system() AS s ON s.system_identifier = h.server) THEN
        RAISE EXCEPTION 'the database was restored on another server and waits for a migration';
    END IF;
    RETURN known;
END
$$;

-- The number of a gate.
CREATE OR REPLACE FUNCTION ingot.gate(kind text, of_tenant uuid, name text) RETURNS bigint
LANGUAGE sql IMMUTABLE
AS $$ SELECT hashtextextended(concat_ws(' ', kind, of_tenant, name), 7307) $$;

-- More keys than these, in one call or one transaction, pass no gates: locks have little room.
CREATE OR REPLACE FUNCTION ingot.gates_max() RETURNS integer
LANGUAGE sql IMMUTABLE
AS $$ SELECT 200 $$;

-- The gates of orders: of each key that they would take.
CREATE OR REPLACE FUNCTION ingot.gates_of(
    of_tenant uuid, of_type text, idempotency_key text, dedupe_key text, reuse_key bytea
) RETURNS bigint[]
LANGUAGE sql IMMUTABLE
AS $$
    SELECT array_remove(ARRAY[
        CASE WHEN idempotency_key IS NOT NULL THEN ingot.gate('made', of_tenant, of_type || ' ' || idempotency_key) END,
        CASE WHEN dedupe_key IS NOT NULL THEN ingot.gate('holds', of_tenant, dedupe_key) END,
        CASE WHEN reuse_key IS NOT NULL THEN ingot.gate('reuse', of_tenant, of_type || ' ' || encode(reuse_key, 'hex')) END
    ], NULL)
$$;

-- Those of these tenants that have a cap and in which an application is enqueuing. Held until the transaction ends.
CREATE OR REPLACE FUNCTION ingot.kept_out(of_tenants uuid[]) RETURNS uuid[]
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN ARRAY(
        SELECT t.id FROM (SELECT DISTINCT id FROM unnest(of_tenants) AS id) AS o JOIN ingot.tenants AS t ON t.id = o.id
        WHERE (t.max_unfinished IS NOT NULL OR t.rate IS NOT NULL)
            AND NOT pg_try_advisory_xact_lock_shared(ingot.gate('caps', t.id, ''))
    );
END
$$;

-- Whether an application holds what these orders need, at this moment.
CREATE OR REPLACE FUNCTION ingot.is_held(
    of_tenants uuid[], of_types text[], idempotency_keys text[], dedupe_keys text[], reuse_keys bytea[]
) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN cardinality(ingot.kept_out(of_tenants)) > 0 OR EXISTS (
        SELECT FROM unnest(of_tenants, of_types, idempotency_keys, dedupe_keys, reuse_keys) AS o (tenant, type, made, holds, reuse)
        CROSS JOIN LATERAL unnest(ingot.gates_of(o.tenant, o.type, o.made, o.holds, o.reuse)) AS g (gate)
        WHERE NOT pg_try_advisory_xact_lock_shared(g.gate)
    );
END
$$;

-- Pass gates alone, in one order for all; a call with too many keys, or of a transaction that has too many already, passes
-- none. What was taken back at a savepoint is not counted. Those who try to come behind us must not
-- shut them for ourselves: we pass them as servers do, too.
CREATE OR REPLACE FUNCTION ingot.pass_gates(gates bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    one bigint;
    passed bigint := cardinality(gates) + coalesce(nullif(current_setting('ingot.gates', true), ''), '0')::bigint;
BEGIN
    IF passed <= ingot.gates_max() THEN
        PERFORM set_config('ingot.gates', passed::text, true);
        FOR one IN SELECT DISTINCT g FROM unnest(gates) AS g ORDER BY g LOOP
            PERFORM pg_advisory_xact_lock(one), pg_advisory_xact_lock_shared(one);
        END LOOP;
    END IF;
END
$$;

-- How many events the batch of this transaction has already, of a tenant.
CREATE OR REPLACE FUNCTION ingot.places_taken(of_tenant uuid) RETURNS bigint
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    RETURN coalesce((
        SELECT sum(CASE json_typeof(n.entry -> 1) WHEN 'array' THEN json_array_length(n.entry -> 1) ELSE 1 END)
        FROM ingot.events AS e CROSS JOIN LATERAL json_array_elements(e.entries::json) AS n (entry)
        WHERE e.tenant = of_tenant AND e.position = ingot.position(pg_current_xact_id())
    ), 0);
END
$$;

-- Refuse so many events more in this transaction when there is no id left for them.
CREATE OR REPLACE FUNCTION ingot.expect_places(of_tenant uuid, events bigint) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    IF ingot.places_taken(of_tenant) + events > 65536 THEN
        PERFORM ingot.refuse_input('a transaction tells of at most 65536 jobs and events of a tenant',
            'Commit some before the rest; of this call nothing was done.');
    END IF;
END
$$;

-- A number for the id of the first of jobs made at an instant, and the id of such a number: a time-ordered UUID.
CREATE OR REPLACE FUNCTION ingot.first_number(at bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE
AS $$ SELECT at / 1000 * 4096 + at % 1000 * 4096 / 1000 $$;

CREATE OR REPLACE FUNCTION ingot.id_of(number bigint) RETURNS uuid
LANGUAGE sql VOLATILE
AS $$
    SELECT (lpad(to_hex(number >> 12), 12, '0') || '7' || lpad(to_hex(number & 4095), 3, '0')
        || substr(replace(gen_random_uuid()::text, '-', ''), 17))::uuid
$$;

-- Enqueue jobs, all or none. Each is an object with the fields of a job in the API; payload and metadata are kept as they are
-- written. Answers, in order, the id of each, where it stands, and whether this call made it.
CREATE OR REPLACE FUNCTION ingot.enqueue_json(jobs json)
RETURNS TABLE (place integer, id uuid, status text, created boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET jit = off
SET extra_float_digits = 1
AS $$
#variable_conflict use_column
DECLARE
    tenant uuid := ingot.app_tenant();
    maker text := 'role/' || ingot.app_role();
    one record;
    jobs_asked integer;
    number bigint := ingot.first_number(ingot.clock());
    ids uuid[] := '{}';
    types text[] := '{}';
    payloads json[] := '{}';
    metadatas json[] := '{}';
    digests bytea[] := '{}';
    idempotency_keys text[] := '{}';
    dedupe_keys text[] := '{}';
    input_lists json[] := '{}';
    orders json[] := '{}';
    parents uuid[];
    rules text[];
    limit_keys text[];
    reuse_keys bytea[];
    answers uuid[];
    made boolean[];
    accepted integer;
    ready boolean;
    about text;
BEGIN
    IF json_typeof(jobs) IS DISTINCT FROM 'array' THEN
        PERFORM ingot.refuse_input(format('jobs is a %s; it is an array of jobs', coalesce(json_typeof(jobs), 'null')));
    END IF;
    jobs_asked := json_array_length(jobs);
    IF jobs_asked > {jobs.checks.BATCH_JOBS_MAX} THEN
        PERFORM ingot.refuse_input(format('there are %s jobs; the most at once is {jobs.checks.BATCH_JOBS_MAX}', jobs_asked));
    ELSIF jobs_asked = 0 THEN
        RETURN;
    END IF;
    -- What is capped is enqueued by one at a time, and this comes before any key.
    IF EXISTS (SELECT FROM ingot.tenants AS t WHERE t.id = tenant AND (t.max_unfinished IS NOT NULL OR t.rate IS NOT NULL)) THEN
        PERFORM ingot.pass_gates(ARRAY[ingot.gate('caps', tenant, '')]);
    END IF;
    FOR one IN
        SELECT o.*, j.n FROM json_array_elements(jobs) WITH ORDINALITY AS j (said, n) CROSS JOIN LATERAL ingot.read_order(j.said) AS o
        ORDER BY j.n
    LOOP
        ids[one.n] := ingot.id_of(number + one.n);
        types[one.n] := one.type;
        payloads[one.n] := one.payload;
        metadatas[one.n] := one.metadata;
        idempotency_keys[one.n] := one.idempotency_key;
        dedupe_keys[one.n] := one.dedupe_key;
        digests[one.n] := CASE WHEN one.idempotency_key IS NOT NULL THEN ingot.json_digest(one.payload) END;
        input_lists[one.n] := one.inputs;
        one.payload := NULL;  -- What is large is carried once.
        one.metadata := NULL;
        one.inputs := NULL;
        orders[one.n] := row_to_json(one);
        parents := parents || one.after;
    END LOOP;
    PERFORM ingot.expect_places(tenant, jobs_asked);
    FOR attempt IN 1..5 LOOP
        SELECT array_agg(k.rule ORDER BY k.n), array_agg(k.limit_key ORDER BY k.n), array_agg(k.reuse_key ORDER BY k.n)
        INTO rules, limit_keys, reuse_keys
        FROM (
            SELECT o.n, d.rule, ingot.limit_key_of(nullif(split_part(d.rule, E'\n', 1), ''), o.payload) AS limit_key,
                CASE WHEN split_part(d.rule, E'\n', 2) <> '' THEN sha256(convert_to(
                    '[' || split_part(d.rule, E'\n', 2) || ',' || ingot.plain_json(o.payload) || ','
                    || coalesce((
                        SELECT ingot.plain_json(json_agg(json_build_array(e.key, e.value) ORDER BY e.key COLLATE "C"))
                        FROM json_each(o.inputs) AS e
                    ), '[]') || ']', 'UTF8')) END AS reuse_key
            FROM unnest(types, payloads, input_lists) WITH ORDINALITY AS o (type, payload, inputs, n)
            LEFT JOIN LATERAL (
                SELECT d.rule FROM ingot.definitions AS d
                WHERE d.type = o.type AND d.tenant IN (tenant, '00000000-0000-0000-0000-000000000000')
                ORDER BY d.tenant DESC LIMIT 1
            ) AS d ON true
        ) AS k;
        PERFORM ingot.pass_gates(ARRAY(
            SELECT g FROM unnest(types, idempotency_keys, dedupe_keys, reuse_keys) AS o (type, made, holds, reuse)
            CROSS JOIN LATERAL unnest(ingot.gates_of(tenant, o.type, o.made, o.holds, o.reuse)) AS g
        ));
        SELECT array_agg(r.answer ORDER BY r.place), array_agg(r.is_new ORDER BY r.place) INTO answers, made
        FROM ingot.resolve_orders(
            ids, array_fill(tenant, ARRAY[cardinality(ids)]), types, idempotency_keys, digests, dedupe_keys, reuse_keys,
            ARRAY(SELECT (o ->> 'force')::boolean FROM unnest(orders) WITH ORDINALITY AS u (o, n) ORDER BY n)
        ) AS r;
        ready := false;
        BEGIN
            SELECT count(*), bool_or(e.run_at <= e.now_) INTO accepted, ready FROM ingot.accept_orders(
                tenant, maker, orders, made, ids, types, payloads, metadatas, digests, input_lists, rules, limit_keys, reuse_keys
            ) AS e;
        EXCEPTION
            WHEN unique_violation THEN
                accepted := -1;  -- Somebody was quicker, and a look shows who.
            WHEN SQLSTATE 'IN048' THEN
                PERFORM ingot.refuse_app('IN048', 'blob_not_found', 'there is no such blob here',
                    'Check the id; a blob is read through a key, a job or an upload of this tenant. Nothing was changed.');
            WHEN SQLSTATE 'IN049' THEN
                GET STACKED DIAGNOSTICS about = PG_EXCEPTION_DETAIL;
                PERFORM ingot.refuse_app('IN049', 'quota_exceeded', format('%s bytes do not fit: the %s uses %s of %s bytes',
                    split_part(about, ' ', 4), split_part(about, ' ', 1), split_part(about, ' ', 2), split_part(about, ' ', 3)),
                    'Nothing was kept. Delete what is not needed, or have the quota raised.');
        END;
        IF accepted = cardinality(array_positions(made, true)) THEN
            IF ready AND coalesce(current_setting('ingot.notify', true), '') <> 'off' THEN
                PERFORM pg_notify('ingot_ready', '');
            END IF;
            RETURN QUERY
            SELECT a.n::integer, a.id, s.status, a.made FROM unnest(answers, made) WITH ORDINALITY AS a (id, made, n)
            CROSS JOIN LATERAL (SELECT s.status FROM ingot.job_rows AS s WHERE s.id = a.id) AS s
            ORDER BY a.n;
            RETURN;
        END IF;
        PERFORM ingot.expect_parents(tenant, parents);
        PERFORM ingot.expect_app_room(array_fill(tenant, ARRAY[cardinality(array_positions(made, true))]));
        EXIT WHEN current_setting('transaction_isolation') IN ('repeatable read', 'serializable');
    END LOOP;
    RAISE EXCEPTION 'another transaction took one of the keys' USING ERRCODE = 'serialization_failure',
        DETAIL = '{"code": "store_busy"}', HINT = 'Roll back and run the transaction again.';
END
$$;

-- The same for what is jsonb already; payloads are kept in the form that it has.
CREATE OR REPLACE FUNCTION ingot.enqueue_jobs(jobs jsonb)
RETURNS TABLE (place integer, id uuid, status text, created boolean)
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$ SELECT * FROM ingot.enqueue_json(jobs::json) $$;

-- Make the orders that are to be made, all or none.
CREATE OR REPLACE FUNCTION ingot.accept_orders(
    of_tenant uuid, maker text, orders json[], made boolean[], ids uuid[], types text[], payloads json[], metadatas json[],
    digests bytea[], input_lists json[], rules text[], limit_keys text[], reuse_keys bytea[]
) RETURNS TABLE (run_at bigint, now_ bigint)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    o record;
BEGIN
    SELECT array_agg(0 ORDER BY n) AS commands, array_agg(id ORDER BY n) AS ids, array_agg(of_tenant ORDER BY n) AS tenants,
        array_agg(type ORDER BY n) AS types, array_agg(convert_to(payload::text, 'UTF8') ORDER BY n) AS payloads,
        array_agg(convert_to(metadata::text, 'UTF8') ORDER BY n) AS metadatas,
        array_agg((said ->> 'priority')::smallint ORDER BY n) AS priorities, array_agg((said ->> 'run_at')::bigint ORDER BY n) AS run_ats,
        array_agg(coalesce((said ->> 'delay')::bigint, 0) ORDER BY n) AS delays, array_agg((said ->> 'max_attempts')::integer ORDER BY n) AS max_attempts,
        array_agg(said ->> 'idempotency_key' ORDER BY n) AS idempotency_keys, array_agg(digest ORDER BY n) AS digests,
        array_agg(said ->> 'dedupe_key' ORDER BY n) AS dedupe_keys, array_agg('manual'::text ORDER BY n) AS sources,
        array_agg(NULL::text ORDER BY n) AS nothing, array_agg(maker ORDER BY n) AS makers,
        array_agg(said ->> 'correlation_id' ORDER BY n) AS correlation_ids, array_agg(said ->> 'trace_id' ORDER BY n) AS trace_ids,
        array_agg(0 ORDER BY n) AS depths, array_agg(rule ORDER BY n) AS rules, array_agg(limit_key ORDER BY n) AS limit_keys,
        array_agg(reuse_key ORDER BY n) AS reuse_keys, array_agg((said ->> 'force')::boolean ORDER BY n) AS forces,
        array_agg(inputs::jsonb ORDER BY n) AS inputs, array_agg(said ->> 'batch' ORDER BY n) AS batches,
        array_agg(json_array_length(said -> 'after') > 0 ORDER BY n) AS waiting, NULL::json AS files
    INTO o
    FROM unnest(orders, made, ids, types, payloads, metadatas, digests, input_lists, rules, limit_keys, reuse_keys)
        WITH ORDINALITY AS u (said, is_new, id, type, payload, metadata, digest, inputs, rule, limit_key, reuse_key, n)
    WHERE is_new;
    IF o.ids IS NULL THEN
        RETURN;
    END IF;
    o.files := (
        SELECT json_agg(json_build_object('command', 0, 'job', u.id, 'tenant', of_tenant, 'owner', maker, 'kind', 'input',
            'name', e.key, 'blob', e.value))
        FROM unnest(made, ids, input_lists) AS u (is_new, id, inputs) CROSS JOIN LATERAL json_each(u.inputs) AS e WHERE u.is_new
    );
    RETURN QUERY
    WITH tagged AS (
        SELECT array_agg(i.id) AS jobs, array_agg(of_tenant) AS tenants, array_agg(t.tag) AS tags, array_agg(0) AS commands
        FROM unnest(ids, orders, made) AS i (id, said, is_new) CROSS JOIN LATERAL json_array_elements_text(i.said -> 'tags') AS t (tag)
        WHERE i.is_new
    ),
    tied AS (
        SELECT array_agg(i.id) AS jobs, array_agg(a.parent::uuid) AS parents, array_agg(of_tenant) AS tenants,
            array_agg((i.said ->> 'runs_anyway')::boolean) AS anyway, array_agg(false) AS inside, array_agg(0) AS commands
        FROM unnest(ids, orders, made) AS i (id, said, is_new) CROSS JOIN LATERAL json_array_elements_text(i.said -> 'after') AS a (parent)
        WHERE i.is_new
    )
    SELECT CASE WHEN e.place IS NOT NULL AND NOT o.waiting[e.place] THEN e.run_at END, e.now_ FROM tagged AS g, tied AS w
    CROSS JOIN LATERAL ingot.enqueue(
        o.commands, o.ids, o.tenants, o.types, o.payloads, o.metadatas, o.priorities, o.run_ats, o.delays, o.max_attempts,
        o.idempotency_keys, o.digests, o.dedupe_keys, o.sources, o.nothing, o.makers, o.correlation_ids, o.trace_ids, o.depths,
        coalesce(g.jobs, '{}'), coalesce(g.tenants, '{}'), coalesce(g.tags, '{}'), coalesce(g.commands, '{}'),
        o.rules, o.limit_keys, o.reuse_keys, o.forces, o.inputs, o.batches, o.waiting,
        w.jobs, w.parents, w.tenants, w.anyway, w.inside, w.commands, NULL, o.files, true
    ) AS e;
END
$$;

-- Refuse to wait for a job that is not there.
CREATE OR REPLACE FUNCTION ingot.expect_parents(of_tenant uuid, parents uuid[]) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    missing uuid := (SELECT p FROM unnest(parents) AS p
        WHERE NOT EXISTS (SELECT FROM ingot.jobs AS j WHERE j.id = p AND j.tenant = of_tenant) LIMIT 1);
BEGIN
    IF missing IS NOT NULL THEN
        PERFORM ingot.refuse_parent(missing::text);
    END IF;
END
$$;

-- The same as `expect_room`, said to an application.
CREATE OR REPLACE FUNCTION ingot.expect_app_room(of_tenants uuid[]) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    wait text;
BEGIN
    PERFORM ingot.expect_room(of_tenants);
EXCEPTION
    WHEN SQLSTATE 'IN008' THEN
        PERFORM ingot.refuse_app('IN008', 'job_limit_exceeded', SQLERRM,
            'Wait until jobs finish, cancel some, or have the limit raised; nothing was changed.');
    WHEN SQLSTATE 'IN009' THEN
        GET STACKED DIAGNOSTICS wait = PG_EXCEPTION_DETAIL;
        PERFORM ingot.refuse_app('IN009', 'rate_limited', SQLERRM,
            'Wait `retry_after_seconds` and send it again, with no more jobs than fit at once; nothing was changed.',
            jsonb_build_object('retry_after_seconds', wait::double precision));
END
$$;
