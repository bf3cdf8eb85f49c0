-- Enqueue jobs. All jobs of a command are accepted, or none. A command is left out of the result and changes nothing if a
-- key of it is taken, if a tenant does not exist, or if an open transaction of an application holds the lock of a key or of
-- a tenant with a cap, or if it has new types that exceed the limit of a tenant or while another transaction adds some. The
-- same goes for a command whose files are missing or exceed a quota, if there are several; for a single command that is an
-- error. `from_app` is true in the transaction of an application.
CREATE OR REPLACE FUNCTION ingot.enqueue(
    commands integer[], ids uuid[], tenants uuid[], types text[], payloads bytea[], metadatas bytea[],
    priorities smallint[], run_ats bigint[], delays bigint[], max_attempts integer[],
    idempotency_keys text[], digests bytea[], dedupe_keys text[], sources text[], source_refs text[],
    created_bys text[], correlation_ids text[], trace_ids text[], depths integer[],
    tagged_ids uuid[], tagged_tenants uuid[], tags text[], tagged_commands integer[],
    rules text[] DEFAULT NULL, limit_keys text[] DEFAULT NULL, reuse_keys bytea[] DEFAULT NULL,
    forces boolean[] DEFAULT NULL, all_inputs jsonb[] DEFAULT NULL, batches text[] DEFAULT NULL,
    waiting boolean[] DEFAULT NULL, wait_jobs uuid[] DEFAULT NULL, wait_parents uuid[] DEFAULT NULL,
    wait_tenants uuid[] DEFAULT NULL, wait_runs_anyway boolean[] DEFAULT NULL, wait_parent_is_new boolean[] DEFAULT NULL,
    wait_commands integer[] DEFAULT NULL, payload_blobs bytea[] DEFAULT NULL, files json DEFAULT NULL,
    from_app boolean DEFAULT false
) RETURNS TABLE (place integer, priority smallint, run_at bigint, max_attempts_ integer, now_ bigint, limit_key text)
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
    capped_tenants uuid[] := '{}';
    locked_tenants uuid[] := '{}';
    refused_commands integer[] := '{}';
    accepted integer[];  -- The places of accepted jobs in the parameters. All other arrays are indexed by place.
    final_priorities smallint[];
    final_max_attempts integer[];
    due_ats bigint[];
    replaced_jobs uuid[];
    with_idempotency boolean := num_nonnulls(VARIADIC idempotency_keys) > 0;
    with_dedupe boolean := num_nonnulls(VARIADIC dedupe_keys) > 0;
    with_reuse boolean := num_nonnulls(VARIADIC reuse_keys) > 0;
    -- The lowest and highest id of jobs created within a second of now, as nearly all are.
    lowest uuid;
    highest uuid;
BEGIN
    -- Most jobs have no keys, tags or parents, so each of these has statements of its own: PostgreSQL prepares every part of
    -- a statement at each call, used or not. For the same reason arrays are indexed by place: `unnest` would keep a tuple
    -- store for each.
    IF EXISTS (SELECT FROM ingot.tenants WHERE max_unfinished IS NOT NULL OR rate IS NOT NULL) THEN
        locked_tenants := ingot.tenants_locked_by_apps(tenants);
        capped_tenants := ingot.lock_capped_tenants(ARRAY(SELECT t FROM unnest(tenants) AS t WHERE t <> ALL (locked_tenants)));
        now := ingot.clock();
    END IF;
    IF files IS NOT NULL THEN
        refused_commands := ingot.lock_order_files(files, wait_parents, from_app);
        now := ingot.clock();
    END IF;
    -- Each type of a tenant is looked up once. Without hash joins, a join of the orders with the types would compare each
    -- order with each type.
    SELECT array_agg(o.place), array_agg(coalesce(priorities[o.place], o.priority)),
        array_agg(coalesce(enqueue.max_attempts[o.place], o.max_attempts)),
        array_agg(greatest(now + delays[o.place], run_ats[o.place], now)),
        -- If the rule of the definition has changed, the caller must compute its keys again.
        refused_commands || array_agg(commands[o.place])
            FILTER (WHERE NOT o.tenant_exists OR o.rule IS DISTINCT FROM rules[o.place])
    INTO accepted, final_priorities, final_max_attempts, due_ats, refused_commands
    FROM (
        SELECT unnest(k.places) AS place, t.id IS NOT NULL AS tenant_exists,
            coalesce(d.priority, 3::smallint) AS priority, coalesce(d.max_attempts, 5) AS max_attempts, d.rule
        FROM (
            SELECT o.tenant, types[o.place] AS type, array_agg(o.place) AS places
            FROM unnest(tenants) WITH ORDINALITY AS o (tenant, place) GROUP BY 1, 2
        ) AS k
        LEFT JOIN ingot.tenants AS t ON t.id = k.tenant
        LEFT JOIN LATERAL (
            SELECT d.* FROM ingot.definitions AS d
            WHERE d.type = k.type AND d.tenant IN (k.tenant, '00000000-0000-0000-0000-000000000000')
            ORDER BY d.tenant DESC LIMIT 1
        ) AS d ON true
        ORDER BY 1
    ) AS o;
    IF cardinality(capped_tenants) > 0 THEN
        refused_commands := refused_commands || ARRAY(
            SELECT u.command FROM (
                SELECT o.command, o.tenant, sum(count(*)) OVER (PARTITION BY o.tenant ORDER BY o.command) AS jobs_so_far
                FROM unnest(commands, tenants) AS o (command, tenant)
                WHERE o.tenant = ANY (capped_tenants) GROUP BY o.tenant, o.command
            ) AS u
            JOIN ingot.remaining_caps(capped_tenants, now) AS c ON c.tenant = u.tenant
            WHERE u.jobs_so_far > least(c.jobs_left, c.rate_jobs_left)
        );
    END IF;
    IF cardinality(locked_tenants) > 0 THEN
        refused_commands := refused_commands || ARRAY(
            SELECT o.command FROM unnest(commands, tenants) AS o (command, tenant) WHERE o.tenant = ANY (locked_tenants)
        );
    END IF;
    IF with_idempotency OR with_dedupe OR with_reuse THEN
        refused_commands := refused_commands
            || ingot.commands_locked_by_apps(commands, tenants, types, idempotency_keys, dedupe_keys, reuse_keys);
    END IF;
    IF with_idempotency THEN
        refused_commands := refused_commands || ARRAY(
            SELECT o.command FROM unnest(commands, tenants, types, idempotency_keys) AS o (command, tenant, type, key)
            CROSS JOIN LATERAL (
                SELECT FROM ingot.idempotency_keys AS k WHERE k.tenant = o.tenant AND k.type = o.type AND k.key = o.key LIMIT 1
            ) AS k
            WHERE o.key IS NOT NULL
        );
    END IF;
    IF with_dedupe THEN
        refused_commands := refused_commands || ARRAY(
            SELECT o.command FROM unnest(commands, tenants, dedupe_keys) AS o (command, tenant, key)
            CROSS JOIN LATERAL (
                SELECT FROM ingot.dedupe_keys AS k WHERE k.tenant = o.tenant AND k.key = o.key LIMIT 1
            ) AS k
            WHERE o.key IS NOT NULL
        );
    END IF;
    IF with_reuse THEN
        SELECT refused_commands || array_agg(o.command) FILTER (WHERE o.force IS NOT TRUE AND k.status NOT IN ('dead', 'canceled')),
            array_agg(k.job)
        INTO refused_commands, replaced_jobs
        FROM unnest(commands, tenants, types, reuse_keys, forces) AS o (command, tenant, type, reuse_key, force)
        CROSS JOIN LATERAL (
            SELECT k.job, s.status FROM ingot.reuse_keys AS k CROSS JOIN LATERAL (
                SELECT s.status FROM ingot.job_rows AS s WHERE s.id = k.job
            ) AS s
            WHERE k.tenant = o.tenant AND k.type = o.type AND k.key = o.reuse_key LIMIT 1
        ) AS k
        WHERE o.reuse_key IS NOT NULL;
    END IF;
    -- Last, because these row locks assign the transaction ID: all transactions that the checks above saw must have lower IDs.
    IF wait_jobs IS NOT NULL THEN
        -- The lock keeps retention from removing the parents.
        refused_commands := refused_commands || ARRAY(
            SELECT e.command FROM unnest(wait_parents, wait_tenants, wait_parent_is_new, wait_commands)
                AS e (parent, tenant, parent_is_new, command)
            LEFT JOIN LATERAL (
                SELECT j.id FROM ingot.jobs AS j WHERE NOT e.parent_is_new AND j.id = e.parent AND j.tenant = e.tenant FOR SHARE
            ) AS p ON true
            WHERE NOT e.parent_is_new AND p.id IS NULL
        );
    END IF;
    IF cardinality(refused_commands) > 0 THEN
        accepted := ARRAY(SELECT p FROM unnest(accepted) AS p WHERE commands[p] <> ALL (refused_commands));
    END IF;
    IF cardinality(accepted) > 0 THEN
        PERFORM pg_current_xact_id();  -- Retention waits for transactions that had an ID when they looked (`types.sql`).
        IF current_setting('transaction_isolation') <> 'read committed' THEN
            -- The snapshot may be older than the transaction ID. The locks fail if it is older than a mark.
            PERFORM FROM ingot.tenant_types AS u WHERE (u.tenant, u.type) IN (
                SELECT tenants[p], types[p] FROM unnest(accepted) AS p
            ) ORDER BY u.tenant, u.type FOR KEY SHARE;
        END IF;
        IF EXISTS (
            SELECT FROM (SELECT DISTINCT tenants[p] AS tenant, types[p] AS type FROM unnest(accepted) AS p) AS o
            LEFT JOIN LATERAL (
                SELECT u.type, u.unused FROM ingot.tenant_types AS u WHERE u.tenant = o.tenant AND u.type = o.type LIMIT 1
            ) AS u ON true
            WHERE u.type IS NULL OR u.unused IS NOT NULL
        ) THEN
            refused_commands := refused_commands || ingot.add_types(commands, tenants, types, accepted, from_app);
            accepted := ARRAY(SELECT p FROM unnest(accepted) AS p WHERE commands[p] <> ALL (refused_commands));
        END IF;
    END IF;

    lowest := (lpad(to_hex(greatest(now / 1000 - 1000, 0)), 12, '0') || '00000000000000000000')::uuid;
    highest := (lpad(to_hex(now / 1000 + 1000), 12, '0') || 'ffffffffffffffffffff')::uuid;
    INSERT INTO ingot.jobs (
        id, tenant, type, payload, metadata, created_at, source, source_ref, created_by, correlation_id, trace_id,
        idempotency_key, dedupe_key, limit_key, batch, inputs, payload_blob, reuse_key, depth, drift
    )
    SELECT ids[p], tenants[p], types[p], payloads[p], metadatas[p], now, sources[p], source_refs[p], created_bys[p],
        correlation_ids[p], trace_ids[p], idempotency_keys[p], dedupe_keys[p], limit_keys[p], batches[p], all_inputs[p],
        payload_blobs[p], reuse_keys[p], depths[p],
        CASE WHEN ids[p] NOT BETWEEN lowest AND highest THEN ingot.id_drift(ids[p], now) END
    FROM unnest(accepted) AS p;
    IF with_idempotency THEN
        INSERT INTO ingot.idempotency_keys (tenant, type, key, job, digest)
        SELECT tenants[p], types[p], idempotency_keys[p], ids[p], digests[p]
        FROM unnest(accepted) AS p WHERE idempotency_keys[p] IS NOT NULL ORDER BY 1, 2, 3;
    END IF;
    IF with_reuse THEN
        -- A key is replaced if its job is dead or canceled, or with `force`. A key that another transaction inserted after
        -- the check above raises a unique violation. Of several forced jobs with one key the last one gets it.
        DELETE FROM ingot.reuse_keys AS k USING unnest(accepted) AS p
        WHERE k.tenant = tenants[p] AND k.type = types[p] AND k.key = reuse_keys[p] AND k.job = ANY (replaced_jobs);
        INSERT INTO ingot.reuse_keys (tenant, type, key, job)
        SELECT DISTINCT ON (t.tenant, t.type, t.reuse_key) t.tenant, t.type, t.reuse_key, t.id
        FROM (
            SELECT tenants[p] AS tenant, types[p] AS type, reuse_keys[p] AS reuse_key, ids[p] AS id, p AS place
            FROM unnest(accepted) AS p
        ) AS t
        WHERE t.reuse_key IS NOT NULL ORDER BY t.tenant, t.type, t.reuse_key, t.place DESC;
    END IF;
    IF with_dedupe THEN
        INSERT INTO ingot.dedupe_keys (tenant, key, job)
        SELECT tenants[p], dedupe_keys[p], ids[p] FROM unnest(accepted) AS p WHERE dedupe_keys[p] IS NOT NULL ORDER BY 1, 2;
    END IF;
    IF cardinality(tagged_ids) > 0 THEN
        INSERT INTO ingot.tags (job, tag, tenant)
        SELECT g.job, g.tag, g.tenant
        FROM unnest(tagged_ids, enqueue.tags, tagged_tenants, tagged_commands) AS g (job, tag, tenant, command)
        WHERE g.command <> ALL (refused_commands);
    END IF;
    INSERT INTO ingot.ready (
        id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts, fence
    )
    SELECT ids[p], tenants[p], types[p], coalesce(limit_keys[p], ''), batches[p], dedupe_keys[p], final_priorities[p], due_ats[p],
        0, 0, 0, final_max_attempts[p], 0
    FROM unnest(accepted) AS p WHERE due_ats[p] <= now AND waiting[p] IS NOT TRUE;
    IF now < ANY (due_ats) THEN
        INSERT INTO ingot.later (
            id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts, fence
        )
        SELECT ids[p], tenants[p], types[p], coalesce(limit_keys[p], ''), batches[p], dedupe_keys[p], final_priorities[p],
            due_ats[p], 0, 0, 0, final_max_attempts[p], 0
        FROM unnest(accepted) AS p WHERE due_ats[p] > now AND waiting[p] IS NOT TRUE;
    END IF;
    IF true = ANY (waiting) THEN
        INSERT INTO ingot.blocked (
            id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts, fence
        )
        SELECT ids[p], tenants[p], types[p], coalesce(limit_keys[p], ''), batches[p], dedupe_keys[p], final_priorities[p],
            due_ats[p], 0, 0, 0, final_max_attempts[p], 0
        FROM unnest(accepted) AS p WHERE waiting[p];
    END IF;
    IF wait_jobs IS NOT NULL THEN
        INSERT INTO ingot.waits (job, parent, tenant, runs_anyway)
        SELECT e.job, e.parent, e.tenant, e.runs_anyway
        FROM unnest(wait_jobs, wait_parents, wait_tenants, wait_runs_anyway, wait_commands)
            AS e (job, parent, tenant, runs_anyway, command)
        WHERE e.command <> ALL (refused_commands);
    END IF;
    IF num_nonnulls(VARIADIC batches) > 0 THEN
        INSERT INTO ingot.batch_deltas (tenant, batch, status, jobs)
        SELECT tenants[p], batches[p], 'queued', count(*) FROM unnest(accepted) AS p WHERE batches[p] IS NOT NULL GROUP BY 1, 2;
    END IF;
    INSERT INTO ingot.events (tenant, position, at, entries)
    SELECT tenant, ingot.event_position(pg_current_xact_id()), now, '[' || string_agg(entry, ',') || ']'
    FROM (
        SELECT tenant, ingot.job_event_entry('job.created', '["' || string_agg(id::text, '","' ORDER BY place) || '"]', type,
            CASE WHEN waits THEN 'blocked' ELSE 'queued' END, 0, 0, 0, 0, NULL, due_at, NULL, NULL, false, NULL, NULL) AS entry
        FROM (
            SELECT ids[p] AS id, tenants[p] AS tenant, types[p] AS type, due_ats[p] AS due_at, waiting[p] AS waits, p AS place
            FROM unnest(accepted) AS p
        ) AS t
        GROUP BY tenant, type, due_at, waits
    ) AS t
    GROUP BY tenant
    ON CONFLICT (tenant, position) DO UPDATE SET entries = ingot.join_entries(events.entries, excluded.entries);
    IF cardinality(capped_tenants) > 0 THEN
        INSERT INTO ingot.buckets AS b (tenant, jobs, at)
        SELECT c.tenant, c.rate_left - t.jobs, now
        FROM (
            SELECT tenants[p] AS tenant, count(*) AS jobs
            FROM unnest(accepted) AS p WHERE tenants[p] = ANY (capped_tenants) GROUP BY 1
        ) AS t
        JOIN ingot.remaining_caps(capped_tenants, now) AS c ON c.tenant = t.tenant
        WHERE c.rate_left IS NOT NULL
        ON CONFLICT (tenant) DO UPDATE SET jobs = excluded.jobs, at = excluded.at;
    END IF;
    INSERT INTO ingot.count_deltas (tenant, type, status, jobs)
    SELECT tenants[p], types[p], CASE WHEN waiting[p] THEN 'blocked' ELSE 'queued' END, count(*)
    FROM unnest(accepted) AS p GROUP BY 1, 2, 3;
    IF files IS NOT NULL THEN
        PERFORM ingot.add_order_files(files, refused_commands, now, from_app);
    END IF;
    RETURN QUERY SELECT p, final_priorities[p], due_ats[p], final_max_attempts[p], now, coalesce(limit_keys[p], '')
    FROM unnest(accepted) AS p;
END
$$;

-- The commands with a key whose gate an open transaction of an application holds. The gates of all other keys are locked
-- (shared) until the transaction ends. Calls with more than `gates_max` keys lock none.
CREATE OR REPLACE FUNCTION ingot.commands_locked_by_apps(
    commands integer[], tenants uuid[], types text[], idempotency_keys text[], dedupe_keys text[], reuse_keys bytea[]
) RETURNS integer[]
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    IF coalesce(num_nonnulls(VARIADIC idempotency_keys), 0) + coalesce(num_nonnulls(VARIADIC dedupe_keys), 0)
        + coalesce(num_nonnulls(VARIADIC reuse_keys), 0) > ingot.gates_max() THEN
        RETURN '{}';
    END IF;
    RETURN ARRAY(
        SELECT o.command
        FROM unnest(commands, tenants, types, idempotency_keys, dedupe_keys, reuse_keys)
            AS o (command, tenant, type, idempotency_key, dedupe_key, reuse_key)
        CROSS JOIN LATERAL unnest(ingot.order_gates(o.tenant, o.type, o.idempotency_key, o.dedupe_key, o.reuse_key)) AS g (gate)
        WHERE NOT pg_try_advisory_xact_lock_shared(g.gate)
    );
END
$$;

-- How far the time in an ID is from another time, as a class: a minute (1), an hour (2), or more (3).
CREATE OR REPLACE FUNCTION ingot.id_drift(id uuid, at bigint) RETURNS smallint
LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE WHEN d <= 60000 THEN 1 WHEN d <= 3600000 THEN 2 ELSE 3 END::smallint
    FROM (SELECT abs(('x' || translate(left(id::text, 13), '-', ''))::bit(48)::bigint - at / 1000) AS d) AS d
$$;
