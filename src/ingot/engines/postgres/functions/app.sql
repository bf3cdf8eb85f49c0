-- Functions that an application calls inside its own transaction: jobs and events exist once that commits.
--
-- Such a transaction may stay open for long. Others should wait for it only if they need the same keys, so it locks a gate
-- for each key exclusively: an advisory lock that it holds until it ends. Servers try to lock the same gates in shared mode.
-- If an application holds a gate, only the commands that need it are refused; others of the same call proceed.

-- The role of the caller: the one set with SET ROLE, which only members can do, or else the session user.
CREATE OR REPLACE FUNCTION ingot.app_role() RETURNS name
LANGUAGE sql STABLE
AS $$ SELECT CASE WHEN current_setting('role') = 'none' THEN session_user ELSE current_setting('role')::name END $$;

-- The tenant that the role has access to. The tenant is locked against removal until the transaction ends.
CREATE OR REPLACE FUNCTION ingot.app_tenant() RETURNS uuid
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    app_role name := ingot.app_role();
    tenant_id uuid := (SELECT a.tenant FROM ingot.app_roles AS a WHERE a.role = app_role);
BEGIN
    PERFORM FROM ingot.tenants AS t WHERE t.id = tenant_id FOR KEY SHARE;
    IF NOT FOUND THEN
        PERFORM ingot.refuse_app('42501', 'forbidden', format('the role %s has no access to a tenant', app_role),
            'Grant it access: `ingot database grant-app ROLE --tenant SLUG`.');
    END IF;
    IF NOT EXISTS (SELECT FROM ingot.home AS h JOIN pg_control_system() AS s ON s.system_identifier = h.server) THEN
        RAISE EXCEPTION 'the database was restored on another server and waits for a migration';
    END IF;
    RETURN tenant_id;
END
$$;

-- The number of the advisory lock of a gate.
CREATE OR REPLACE FUNCTION ingot.gate(kind text, of_tenant uuid, name text) RETURNS bigint
LANGUAGE sql IMMUTABLE
AS $$ SELECT hashtextextended(concat_ws(' ', kind, of_tenant, name), 7307) $$;

-- A call or transaction with more keys locks no gates, because the lock table of PostgreSQL is small.
CREATE OR REPLACE FUNCTION ingot.gates_max() RETURNS integer
LANGUAGE sql IMMUTABLE
AS $$ SELECT 200 $$;

-- The gates of an order: one for each of its keys.
CREATE OR REPLACE FUNCTION ingot.order_gates(
    of_tenant uuid, of_type text, idempotency_key text, dedupe_key text, reuse_key bytea
) RETURNS bigint[]
LANGUAGE sql IMMUTABLE
AS $$
    SELECT array_remove(ARRAY[
        CASE WHEN idempotency_key IS NOT NULL THEN ingot.gate('idempotency', of_tenant, of_type || ' ' || idempotency_key) END,
        CASE WHEN dedupe_key IS NOT NULL THEN ingot.gate('dedupe', of_tenant, dedupe_key) END,
        CASE WHEN reuse_key IS NOT NULL THEN ingot.gate('reuse', of_tenant, of_type || ' ' || encode(reuse_key, 'hex')) END
    ], NULL)
$$;

-- Those of these tenants with a cap whose gate an application holds. The other gates are locked until the transaction ends.
CREATE OR REPLACE FUNCTION ingot.tenants_locked_by_apps(of_tenants uuid[]) RETURNS uuid[]
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

-- Whether an application holds a gate that these orders need.
CREATE OR REPLACE FUNCTION ingot.is_locked_by_app(
    of_tenants uuid[], of_types text[], idempotency_keys text[], dedupe_keys text[], reuse_keys bytea[]
) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN cardinality(ingot.tenants_locked_by_apps(of_tenants)) > 0 OR EXISTS (
        SELECT FROM unnest(of_tenants, of_types, idempotency_keys, dedupe_keys, reuse_keys)
            AS o (tenant, type, idempotency_key, dedupe_key, reuse_key)
        CROSS JOIN LATERAL unnest(
            ingot.order_gates(o.tenant, o.type, o.idempotency_key, o.dedupe_key, o.reuse_key)
        ) AS g (gate)
        WHERE NOT pg_try_advisory_xact_lock_shared(g.gate)
    );
END
$$;

-- Lock gates exclusively, always in the same order; none if the call or its transaction has too many keys. The counter is a
-- transaction-local setting, so a rollback to a savepoint restores it. The shared lock is taken as well, because later
-- functions of this transaction try it, as servers do, while others may already wait for the gate.
CREATE OR REPLACE FUNCTION ingot.lock_gates(gates bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    gate bigint;
    gate_count bigint := cardinality(gates) + coalesce(nullif(current_setting('ingot.gates', true), ''), '0')::bigint;
BEGIN
    IF gate_count <= ingot.gates_max() THEN
        PERFORM set_config('ingot.gates', gate_count::text, true);
        FOR gate IN SELECT DISTINCT g FROM unnest(gates) AS g ORDER BY g LOOP
            PERFORM pg_advisory_xact_lock(gate), pg_advisory_xact_lock_shared(gate);
        END LOOP;
    END IF;
END
$$;

-- The number of events of a tenant that this transaction has written.
CREATE OR REPLACE FUNCTION ingot.events_in_transaction(of_tenant uuid) RETURNS bigint
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    RETURN coalesce((
        SELECT sum(CASE json_typeof(n.entry -> 1) WHEN 'array' THEN json_array_length(n.entry -> 1) ELSE 1 END)
        FROM ingot.events AS e CROSS JOIN LATERAL json_array_elements(e.entries::json) AS n (entry)
        WHERE e.tenant = of_tenant AND e.position = ingot.event_position(pg_current_xact_id())
    ), 0);
END
$$;

-- Refuse more events in this transaction than event IDs are left.
CREATE OR REPLACE FUNCTION ingot.expect_event_capacity(of_tenant uuid, events bigint) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    IF ingot.events_in_transaction(of_tenant) + events > 65536 THEN
        PERFORM ingot.refuse_input('a transaction can add at most 65536 jobs and events of a tenant',
            'Commit some of them first. This call changed nothing.');
    END IF;
END
$$;

-- The number of the first job created at a time, and the job ID for such a number: a time-ordered UUID.
CREATE OR REPLACE FUNCTION ingot.first_id_number(at bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE
AS $$ SELECT at / 1000 * 4096 + at % 1000 * 4096 / 1000 $$;

CREATE OR REPLACE FUNCTION ingot.id_from_number(number bigint) RETURNS uuid
LANGUAGE sql VOLATILE
AS $$
    SELECT (lpad(to_hex(number >> 12), 12, '0') || '7' || lpad(to_hex(number & 4095), 3, '0')
        || substr(replace(gen_random_uuid()::text, '-', ''), 17))::uuid
$$;

-- Enqueue jobs, all or none. Each is an object with the fields of a job in the API; payload and metadata are stored as
-- written. Returns, in order, the ID and status of each, and whether this call created it.
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
    created_by text := 'role/' || ingot.app_role();
    order_row record;
    job_count integer;
    first_number bigint := ingot.first_id_number(ingot.clock());
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
    answer_ids uuid[];
    is_new_flags boolean[];
    accepted integer;
    has_ready boolean;
    refusal_detail text;
BEGIN
    IF json_typeof(jobs) IS DISTINCT FROM 'array' THEN
        PERFORM ingot.refuse_input(format('jobs must be an array of jobs, got %s', coalesce(json_typeof(jobs), 'null')));
    END IF;
    job_count := json_array_length(jobs);
    IF job_count > {jobs.checks.BATCH_JOBS_MAX} THEN
        PERFORM ingot.refuse_input(format('a call must have at most {jobs.checks.BATCH_JOBS_MAX} jobs, got %s', job_count));
    ELSIF job_count = 0 THEN
        RETURN;
    END IF;
    -- Only one transaction at a time enqueues jobs of a tenant with a cap. Its gate comes before those of keys.
    IF EXISTS (SELECT FROM ingot.tenants AS t WHERE t.id = tenant AND (t.max_unfinished IS NOT NULL OR t.rate IS NOT NULL)) THEN
        PERFORM ingot.lock_gates(ARRAY[ingot.gate('caps', tenant, '')]);
    END IF;
    FOR order_row IN
        SELECT o.*, j.n FROM json_array_elements(jobs) WITH ORDINALITY AS j (job_json, n)
            CROSS JOIN LATERAL ingot.read_order(j.job_json) AS o
        ORDER BY j.n
    LOOP
        ids[order_row.n] := ingot.id_from_number(first_number + order_row.n);
        types[order_row.n] := order_row.type;
        payloads[order_row.n] := order_row.payload;
        metadatas[order_row.n] := order_row.metadata;
        idempotency_keys[order_row.n] := order_row.idempotency_key;
        dedupe_keys[order_row.n] := order_row.dedupe_key;
        digests[order_row.n] := CASE WHEN order_row.idempotency_key IS NOT NULL THEN ingot.json_digest(order_row.payload) END;
        input_lists[order_row.n] := order_row.inputs;
        order_row.payload := NULL;  -- Large values are passed only once.
        order_row.metadata := NULL;
        order_row.inputs := NULL;
        orders[order_row.n] := row_to_json(order_row);
        parents := parents || order_row.after;
    END LOOP;
    PERFORM ingot.expect_event_capacity(tenant, job_count);
    FOR attempt IN 1..5 LOOP
        SELECT array_agg(k.rule ORDER BY k.n), array_agg(k.limit_key ORDER BY k.n), array_agg(k.reuse_key ORDER BY k.n)
        INTO rules, limit_keys, reuse_keys
        FROM (
            SELECT o.n, d.rule, ingot.limit_key_of(nullif(split_part(d.rule, E'\n', 1), ''), o.payload) AS limit_key,
                CASE WHEN split_part(d.rule, E'\n', 2) <> '' THEN sha256(convert_to(
                    '[' || split_part(d.rule, E'\n', 2) || ',' || ingot.canonical_json(o.payload) || ','
                    || coalesce((
                        SELECT ingot.canonical_json(json_agg(json_build_array(e.key, e.value) ORDER BY e.key COLLATE "C"))
                        FROM json_each(o.inputs) AS e
                    ), '[]') || ']', 'UTF8')) END AS reuse_key
            FROM unnest(types, payloads, input_lists) WITH ORDINALITY AS o (type, payload, inputs, n)
            LEFT JOIN LATERAL (
                SELECT d.rule FROM ingot.definitions AS d
                WHERE d.type = o.type AND d.tenant IN (tenant, '00000000-0000-0000-0000-000000000000')
                ORDER BY d.tenant DESC LIMIT 1
            ) AS d ON true
        ) AS k;
        PERFORM ingot.lock_gates(ARRAY(
            SELECT g FROM unnest(types, idempotency_keys, dedupe_keys, reuse_keys)
                AS o (type, idempotency_key, dedupe_key, reuse_key)
            CROSS JOIN LATERAL unnest(ingot.order_gates(tenant, o.type, o.idempotency_key, o.dedupe_key, o.reuse_key)) AS g
        ));
        SELECT array_agg(r.answer ORDER BY r.place), array_agg(r.is_new ORDER BY r.place) INTO answer_ids, is_new_flags
        FROM ingot.resolve_orders(
            ids, array_fill(tenant, ARRAY[cardinality(ids)]), types, idempotency_keys, digests, dedupe_keys, reuse_keys,
            ARRAY(SELECT (o ->> 'force')::boolean FROM unnest(orders) WITH ORDINALITY AS u (o, n) ORDER BY n)
        ) AS r;
        has_ready := false;
        BEGIN
            SELECT count(*), bool_or(e.run_at <= e.now_) INTO accepted, has_ready FROM ingot.accept_orders(
                tenant, created_by, orders, is_new_flags, ids, types, payloads, metadatas, digests, input_lists, rules,
                limit_keys, reuse_keys
            ) AS e;
        EXCEPTION
            WHEN unique_violation THEN
                accepted := -1;  -- Another transaction inserted a key first; the next round finds it.
            WHEN SQLSTATE 'IN048' THEN
                PERFORM ingot.refuse_app('IN048', 'blob_not_found', 'an input blob does not exist in this tenant',
                    'Check the ID. A blob can be read only if a key, a job or an upload of this tenant refers to it.');
            WHEN SQLSTATE 'IN049' THEN
                GET STACKED DIAGNOSTICS refusal_detail = PG_EXCEPTION_DETAIL;
                PERFORM ingot.refuse_app('IN049', 'quota_exceeded',
                    format('%s bytes would exceed the quota: the %s uses %s of %s bytes',
                    split_part(refusal_detail, ' ', 4), split_part(refusal_detail, ' ', 1), split_part(refusal_detail, ' ', 2),
                    split_part(refusal_detail, ' ', 3)),
                    'Nothing was kept. Delete files that are not needed, or have the quota raised.');
        END;
        IF accepted = cardinality(array_positions(is_new_flags, true)) THEN
            IF has_ready AND coalesce(current_setting('ingot.notify', true), '') <> 'off' THEN
                PERFORM pg_notify('ingot_ready', '');
            END IF;
            RETURN QUERY
            SELECT a.n::integer, a.id, s.status, a.is_new
            FROM unnest(answer_ids, is_new_flags) WITH ORDINALITY AS a (id, is_new, n)
            CROSS JOIN LATERAL (SELECT s.status FROM ingot.job_rows AS s WHERE s.id = a.id) AS s
            ORDER BY a.n;
            RETURN;
        END IF;
        PERFORM ingot.expect_parents(tenant, parents);
        PERFORM ingot.expect_app_capacity(
            array_fill(tenant, ARRAY[cardinality(array_positions(is_new_flags, true))]),
            ARRAY(SELECT t FROM unnest(types, is_new_flags) AS o (t, is_new) WHERE is_new)
        );
        EXIT WHEN current_setting('transaction_isolation') IN ('repeatable read', 'serializable');
    END LOOP;
    RAISE EXCEPTION 'another transaction inserted one of the keys' USING ERRCODE = 'serialization_failure',
        DETAIL = '{"code": "store_busy"}', HINT = 'Roll back and run the transaction again.';
END
$$;

-- The same for jsonb. Payloads are stored as jsonb formats them.
CREATE OR REPLACE FUNCTION ingot.enqueue_jobs(jobs jsonb)
RETURNS TABLE (place integer, id uuid, status text, created boolean)
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$ SELECT * FROM ingot.enqueue_json(jobs::json) $$;

-- Enqueue the orders that need a new job, all or none.
CREATE OR REPLACE FUNCTION ingot.accept_orders(
    of_tenant uuid, created_by text, orders json[], is_new_flags boolean[], ids uuid[], types text[], payloads json[],
    metadatas json[], digests bytea[], input_lists json[], rules text[], limit_keys text[], reuse_keys bytea[]
) RETURNS TABLE (run_at bigint, now_ bigint)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    arrays record;
BEGIN
    SELECT array_agg(0 ORDER BY n) AS commands, array_agg(id ORDER BY n) AS ids, array_agg(of_tenant ORDER BY n) AS tenants,
        array_agg(type ORDER BY n) AS types, array_agg(convert_to(payload::text, 'UTF8') ORDER BY n) AS payloads,
        array_agg(convert_to(metadata::text, 'UTF8') ORDER BY n) AS metadatas,
        array_agg((order_json ->> 'priority')::smallint ORDER BY n) AS priorities,
        array_agg((order_json ->> 'run_at')::bigint ORDER BY n) AS run_ats,
        array_agg(coalesce((order_json ->> 'delay')::bigint, 0) ORDER BY n) AS delays,
        array_agg((order_json ->> 'max_attempts')::integer ORDER BY n) AS max_attempts,
        array_agg(order_json ->> 'idempotency_key' ORDER BY n) AS idempotency_keys, array_agg(digest ORDER BY n) AS digests,
        array_agg(order_json ->> 'dedupe_key' ORDER BY n) AS dedupe_keys, array_agg('manual'::text ORDER BY n) AS sources,
        array_agg(NULL::text ORDER BY n) AS nulls, array_agg(created_by ORDER BY n) AS created_bys,
        array_agg(order_json ->> 'correlation_id' ORDER BY n) AS correlation_ids,
        array_agg(order_json ->> 'trace_id' ORDER BY n) AS trace_ids,
        array_agg(0 ORDER BY n) AS depths, array_agg(rule ORDER BY n) AS rules, array_agg(limit_key ORDER BY n) AS limit_keys,
        array_agg(reuse_key ORDER BY n) AS reuse_keys, array_agg((order_json ->> 'force')::boolean ORDER BY n) AS forces,
        array_agg(inputs::jsonb ORDER BY n) AS inputs, array_agg(order_json ->> 'batch' ORDER BY n) AS batches,
        array_agg(json_array_length(order_json -> 'after') > 0 ORDER BY n) AS waiting, NULL::json AS files
    INTO arrays
    FROM unnest(orders, is_new_flags, ids, types, payloads, metadatas, digests, input_lists, rules, limit_keys, reuse_keys)
        WITH ORDINALITY AS u (order_json, is_new, id, type, payload, metadata, digest, inputs, rule, limit_key, reuse_key, n)
    WHERE is_new;
    IF arrays.ids IS NULL THEN
        RETURN;
    END IF;
    arrays.files := (
        SELECT json_agg(json_build_object('command', 0, 'job', u.id, 'tenant', of_tenant, 'owner', created_by, 'kind', 'input',
            'name', e.key, 'blob', e.value))
        FROM unnest(is_new_flags, ids, input_lists) AS u (is_new, id, inputs) CROSS JOIN LATERAL json_each(u.inputs) AS e
        WHERE u.is_new
    );
    RETURN QUERY
    WITH tagged AS (
        SELECT array_agg(i.id) AS jobs, array_agg(of_tenant) AS tenants, array_agg(t.tag) AS tags, array_agg(0) AS commands
        FROM unnest(ids, orders, is_new_flags) AS i (id, order_json, is_new)
        CROSS JOIN LATERAL json_array_elements_text(i.order_json -> 'tags') AS t (tag)
        WHERE i.is_new
    ),
    dependencies AS (
        SELECT array_agg(i.id) AS jobs, array_agg(a.parent::uuid) AS parents, array_agg(of_tenant) AS tenants,
            array_agg((i.order_json ->> 'runs_anyway')::boolean) AS runs_anyway, array_agg(false) AS parent_is_new,
            array_agg(0) AS commands
        FROM unnest(ids, orders, is_new_flags) AS i (id, order_json, is_new)
        CROSS JOIN LATERAL json_array_elements_text(i.order_json -> 'after') AS a (parent)
        WHERE i.is_new
    )
    SELECT CASE WHEN e.place IS NOT NULL AND NOT arrays.waiting[e.place] THEN e.run_at END, e.now_
    FROM tagged AS g, dependencies AS w
    CROSS JOIN LATERAL ingot.enqueue(
        arrays.commands, arrays.ids, arrays.tenants, arrays.types, arrays.payloads, arrays.metadatas, arrays.priorities,
        arrays.run_ats, arrays.delays, arrays.max_attempts, arrays.idempotency_keys, arrays.digests, arrays.dedupe_keys,
        arrays.sources, arrays.nulls, arrays.created_bys, arrays.correlation_ids, arrays.trace_ids, arrays.depths,
        coalesce(g.jobs, '{}'), coalesce(g.tenants, '{}'), coalesce(g.tags, '{}'), coalesce(g.commands, '{}'),
        arrays.rules, arrays.limit_keys, arrays.reuse_keys, arrays.forces, arrays.inputs, arrays.batches, arrays.waiting,
        w.jobs, w.parents, w.tenants, w.runs_anyway, w.parent_is_new, w.commands, NULL, arrays.files, true
    ) AS e;
END
$$;

-- Refuse parents that do not exist.
CREATE OR REPLACE FUNCTION ingot.expect_parents(of_tenant uuid, parents uuid[]) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    missing_parent uuid := (SELECT p FROM unnest(parents) AS p
        WHERE NOT EXISTS (SELECT FROM ingot.jobs AS j WHERE j.id = p AND j.tenant = of_tenant) LIMIT 1);
BEGIN
    IF missing_parent IS NOT NULL THEN
        PERFORM ingot.refuse_parent(missing_parent::text);
    END IF;
END
$$;

-- `expect_capacity` and `expect_types` with the error details that applications get.
CREATE OR REPLACE FUNCTION ingot.expect_app_capacity(of_tenants uuid[], of_types text[]) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    retry_after_seconds text;
BEGIN
    PERFORM ingot.expect_capacity(of_tenants), ingot.expect_types(of_tenants, of_types);
EXCEPTION
    WHEN SQLSTATE 'IN074' THEN
        PERFORM ingot.refuse_app('IN074', 'type_limit_exceeded', SQLERRM,
            'Use fewer types, wait until retention has removed all jobs of some types, '
            'or ask an operator to raise `max_job_types`. Nothing was changed.');
    WHEN SQLSTATE 'IN008' THEN
        PERFORM ingot.refuse_app('IN008', 'job_limit_exceeded', SQLERRM,
            'Wait until jobs are finished, cancel some, or ask an operator to raise the limit. Nothing was changed.');
    WHEN SQLSTATE 'IN009' THEN
        GET STACKED DIAGNOSTICS retry_after_seconds = PG_EXCEPTION_DETAIL;
        PERFORM ingot.refuse_app('IN009', 'rate_limited', SQLERRM,
            'Wait `retry_after_seconds`, then try again with no more jobs than the burst allows. Nothing was changed.',
            jsonb_build_object('retry_after_seconds', retry_after_seconds::double precision));
END
$$;
