-- Accept orders. Orders of one command are accepted together or not at all: a command that meets a key which is
-- taken, or names a tenant that is not there, is left out of the answer and has changed nothing. So is one that needs what
-- an application holds in a transaction of its own: a key, or the turn of a tenant that has a cap. So is one of several
-- whose files are not there, or do not fit; when it is the only one, that is an error. An application is `apart`.
CREATE OR REPLACE FUNCTION ingot.enqueue(
    commands integer[], ids uuid[], tenants uuid[], types text[], payloads bytea[], metadatas bytea[],
    priorities smallint[], run_ats bigint[], delays bigint[], max_attempts integer[],
    idempotency_keys text[], digests bytea[], dedupe_keys text[], sources text[], source_refs text[],
    created_bys text[], correlation_ids text[], trace_ids text[], depths integer[],
    tagged_ids uuid[], tagged_tenants uuid[], tags text[], tagged_commands integer[],
    rules text[] DEFAULT NULL, limit_keys text[] DEFAULT NULL, reuse_keys bytea[] DEFAULT NULL,
    forces boolean[] DEFAULT NULL, all_inputs jsonb[] DEFAULT NULL, batches text[] DEFAULT NULL,
    waiting boolean[] DEFAULT NULL, wait_jobs uuid[] DEFAULT NULL, wait_parents uuid[] DEFAULT NULL,
    wait_tenants uuid[] DEFAULT NULL, wait_anyway boolean[] DEFAULT NULL, wait_inside boolean[] DEFAULT NULL,
    wait_commands integer[] DEFAULT NULL, payload_blobs bytea[] DEFAULT NULL, files json DEFAULT NULL, apart boolean DEFAULT false
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
    capped uuid[];
    shut uuid[] := '{}';
    barred integer[] := '{}';
    gated boolean := num_nonnulls(VARIADIC idempotency_keys) + num_nonnulls(VARIADIC dedupe_keys)
        + coalesce(num_nonnulls(VARIADIC reuse_keys), 0) BETWEEN 1 AND ingot.gates_max();
    -- The first and the last id of those made within a second of now, as nearly all are.
    lowest uuid;
    highest uuid;
BEGIN
    IF EXISTS (SELECT FROM ingot.tenants WHERE max_unfinished IS NOT NULL OR rate IS NOT NULL) THEN
        shut := ingot.kept_out(tenants);
        capped := ingot.lock_capped(ARRAY(SELECT t FROM unnest(tenants) AS t WHERE t <> ALL (shut)));
        now := ingot.clock();
    END IF;
    IF files IS NOT NULL THEN
        barred := ingot.hold_files(files, wait_parents, apart);
        now := ingot.clock();
    END IF;
    lowest := (lpad(to_hex(greatest(now / 1000 - 1000, 0)), 12, '0') || '00000000000000000000')::uuid;
    highest := (lpad(to_hex(now / 1000 + 1000), 12, '0') || 'ffffffffffffffffffff')::uuid;
    RETURN QUERY
    WITH asked AS MATERIALIZED (
        SELECT * FROM unnest(
            commands, ids, tenants, types, payloads, metadatas, priorities, run_ats, delays, max_attempts,
            idempotency_keys, digests, dedupe_keys, sources, source_refs, created_bys, correlation_ids, trace_ids, depths,
            rules, limit_keys, reuse_keys, forces, all_inputs, batches, waiting, payload_blobs
        ) WITH ORDINALITY AS o (
            command, id, tenant, type, payload, metadata, priority, run_at, delay, max_attempts,
            idempotency_key, digest, dedupe_key, source, source_ref, created_by, correlation_id, trace_id, depth,
            rule, limit_key, reuse_key, force, inputs, batch, waits, payload_blob, place
        )
    ),
    kinds AS MATERIALIZED (
        SELECT k.tenant, k.type, t.id IS NOT NULL AS known,
            coalesce(d.priority, 3::smallint) AS priority, coalesce(d.max_attempts, 5) AS max_attempts, d.rule
        FROM (SELECT DISTINCT tenant, type FROM asked) AS k
        LEFT JOIN ingot.tenants AS t ON t.id = k.tenant
        LEFT JOIN LATERAL (
            SELECT d.* FROM ingot.definitions AS d
            WHERE d.type = k.type AND d.tenant IN (k.tenant, '00000000-0000-0000-0000-000000000000')
            ORDER BY d.tenant DESC LIMIT 1
        ) AS d ON true
    ),
    edges AS MATERIALIZED (
        -- Whoever removes finished jobs lets those be that are waited for from now on.
        SELECT e.*, e.inside OR p.id IS NOT NULL AS there
        FROM unnest(wait_jobs, wait_parents, wait_tenants, wait_anyway, wait_inside, wait_commands)
            AS e (job, parent, tenant, runs_anyway, inside, command)
        LEFT JOIN LATERAL (
            SELECT j.id FROM ingot.jobs AS j WHERE NOT e.inside AND j.id = e.parent AND j.tenant = e.tenant FOR SHARE
        ) AS p ON true
    ),
    refused AS MATERIALIZED (
        SELECT o.command FROM asked AS o JOIN kinds AS k ON k.tenant = o.tenant AND k.type = o.type WHERE NOT k.known
            OR k.rule IS DISTINCT FROM o.rule  -- Somebody else changed it: the caller must make its keys anew.
        UNION ALL
        SELECT u.command FROM (
            SELECT o.command, o.tenant, sum(count(*)) OVER (PARTITION BY o.tenant ORDER BY o.command) AS upto
            FROM asked AS o WHERE o.tenant = ANY (capped) GROUP BY o.tenant, o.command
        ) AS u
        JOIN ingot.caps(capped, now) AS c ON c.tenant = u.tenant
        WHERE u.upto > least(c.jobs_left, c.whole)
        UNION ALL
        SELECT o.command FROM asked AS o CROSS JOIN LATERAL (
            SELECT FROM ingot.idempotency_keys AS k
            WHERE k.tenant = o.tenant AND k.type = o.type AND k.key = o.idempotency_key LIMIT 1
        ) AS k
        WHERE o.idempotency_key IS NOT NULL
        UNION ALL
        SELECT o.command FROM asked AS o CROSS JOIN LATERAL (
            SELECT FROM ingot.dedupe_keys AS k WHERE k.tenant = o.tenant AND k.key = o.dedupe_key LIMIT 1
        ) AS k
        WHERE o.dedupe_key IS NOT NULL
        UNION ALL
        SELECT o.command FROM asked AS o CROSS JOIN LATERAL (
            SELECT s.status FROM ingot.reuse_keys AS k CROSS JOIN LATERAL (
                SELECT s.status FROM ingot.job_rows AS s WHERE s.id = k.job
            ) AS s
            WHERE k.tenant = o.tenant AND k.type = o.type AND k.key = o.reuse_key LIMIT 1
        ) AS k
        WHERE o.reuse_key IS NOT NULL AND o.force IS NOT TRUE AND k.status NOT IN ('dead', 'canceled')
        UNION ALL
        SELECT e.command FROM edges AS e WHERE NOT e.there
        UNION ALL
        SELECT o.command FROM asked AS o WHERE o.tenant = ANY (shut) OR o.command = ANY (barred)
        UNION ALL
        SELECT o.command FROM asked AS o
        CROSS JOIN LATERAL unnest(ingot.gates_of(o.tenant, o.type, o.idempotency_key, o.dedupe_key, o.reuse_key)) AS g (gate)
        WHERE gated AND NOT pg_try_advisory_xact_lock_shared(g.gate)
    ),
    taken AS MATERIALIZED (
        SELECT o.*, coalesce(o.priority, k.priority) AS own_priority,
            coalesce(o.max_attempts, k.max_attempts) AS own_max_attempts,
            greatest(now + o.delay, o.run_at, now) AS due_at
        FROM asked AS o JOIN kinds AS k ON k.tenant = o.tenant AND k.type = o.type
        WHERE o.command NOT IN (SELECT command FROM refused)
    ),
    made AS (
        INSERT INTO ingot.jobs (
            id, tenant, type, payload, metadata, created_at, source, source_ref, created_by, correlation_id, trace_id,
            idempotency_key, dedupe_key, limit_key, batch, inputs, payload_blob, reuse_key, depth, drift
        )
        SELECT id, tenant, type, payload, metadata, now, source, source_ref, created_by, correlation_id, trace_id,
            idempotency_key, dedupe_key, limit_key, batch, inputs, payload_blob, reuse_key, depth,
            CASE WHEN id NOT BETWEEN lowest AND highest THEN ingot.drift_of(id, now) END
        FROM taken
    ),
    keyed AS (
        INSERT INTO ingot.idempotency_keys (tenant, type, key, job, digest)
        SELECT tenant, type, idempotency_key, id, digest FROM taken WHERE idempotency_key IS NOT NULL
        ORDER BY tenant, type, idempotency_key
    ),
    -- One whose job is dead or canceled is replaced, as is any when that is forced; a new one that somebody else has made
    -- meanwhile stands in the way, which it would not if the row were updated. Of several that are forced the last counts.
    last AS MATERIALIZED (
        SELECT DISTINCT ON (t.tenant, t.type, t.reuse_key) t.tenant, t.type, t.reuse_key, t.id FROM taken AS t
        WHERE t.reuse_key IS NOT NULL ORDER BY t.tenant, t.type, t.reuse_key, t.place DESC
    ),
    cleared AS (
        DELETE FROM ingot.reuse_keys AS k USING last AS t
        WHERE k.tenant = t.tenant AND k.type = t.type AND k.key = t.reuse_key
        RETURNING k.key
    ),
    reusable AS (
        INSERT INTO ingot.reuse_keys (tenant, type, key, job)
        SELECT t.tenant, t.type, t.reuse_key, t.id FROM last AS t
        WHERE (SELECT count(*) FROM cleared) >= 0  -- After they are gone.
        ORDER BY t.tenant, t.type, t.reuse_key
    ),
    held AS (
        INSERT INTO ingot.dedupe_keys (tenant, key, job)
        SELECT tenant, dedupe_key, id FROM taken WHERE dedupe_key IS NOT NULL
        ORDER BY tenant, dedupe_key
    ),
    labeled AS (
        INSERT INTO ingot.tags (job, tag, tenant)
        SELECT g.job, g.tag, g.tenant
        FROM unnest(tagged_ids, tags, tagged_tenants, tagged_commands) AS g (job, tag, tenant, command)
        WHERE g.command NOT IN (SELECT command FROM refused)
    ),
    due AS (
        INSERT INTO ingot.ready (
            id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts, fence
        )
        SELECT id, tenant, type, coalesce(limit_key, ''), batch, dedupe_key, own_priority, due_at, 0, 0, 0, own_max_attempts, 0
        FROM taken WHERE due_at <= now AND waits IS NOT TRUE
    ),
    put_off AS (
        INSERT INTO ingot.later (
            id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts, fence
        )
        SELECT id, tenant, type, coalesce(limit_key, ''), batch, dedupe_key, own_priority, due_at, 0, 0, 0, own_max_attempts, 0
        FROM taken WHERE due_at > now AND waits IS NOT TRUE
    ),
    blocked AS (
        INSERT INTO ingot.blocked (
            id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts, fence
        )
        SELECT id, tenant, type, coalesce(limit_key, ''), batch, dedupe_key, own_priority, due_at, 0, 0, 0,
            own_max_attempts, 0
        FROM taken WHERE waits
    ),
    tied AS (
        INSERT INTO ingot.waits (job, parent, tenant, runs_anyway)
        SELECT job, parent, tenant, runs_anyway FROM edges WHERE command NOT IN (SELECT command FROM refused)
    ),
    batched AS (
        INSERT INTO ingot.batch_deltas (tenant, batch, status, jobs)
        SELECT tenant, batch, 'queued', count(*) FROM taken WHERE batch IS NOT NULL GROUP BY tenant, batch
    ),
    told AS (
        INSERT INTO ingot.events (tenant, position, at, entries)
        SELECT tenant, ingot.position(pg_current_xact_id()), now, '[' || string_agg(entry, ',') || ']'
        FROM (
            SELECT tenant, ingot.news('job.created', '["' || string_agg(id::text, '","' ORDER BY place) || '"]', type,
                CASE WHEN waits THEN 'blocked' ELSE 'queued' END, 0, 0, 0, 0, NULL, due_at, NULL, NULL, false, NULL, NULL) AS entry
            FROM taken GROUP BY tenant, type, due_at, waits
        ) AS t
        GROUP BY tenant
        ON CONFLICT (tenant, position) DO UPDATE SET entries = ingot.then(events.entries, excluded.entries)
    ),
    spent AS (
        INSERT INTO ingot.buckets AS b (tenant, jobs, at)
        SELECT c.tenant, c.rate_left - t.jobs, now
        FROM (SELECT tenant, count(*) AS jobs FROM taken WHERE tenant = ANY (capped) GROUP BY tenant) AS t
        JOIN ingot.caps(capped, now) AS c ON c.tenant = t.tenant
        WHERE c.rate_left IS NOT NULL
        ON CONFLICT (tenant) DO UPDATE SET jobs = excluded.jobs, at = excluded.at
    ),
    counted AS (
        INSERT INTO ingot.count_deltas (tenant, type, status, jobs)
        SELECT tenant, type, CASE WHEN waits THEN 'blocked' ELSE 'queued' END, count(*)
        FROM taken GROUP BY tenant, type, waits
    )
    SELECT place::integer, own_priority, due_at, own_max_attempts, now, coalesce(limit_key, '') FROM taken ORDER BY place;
    IF files IS NOT NULL THEN
        PERFORM ingot.add_files(files, barred, now, apart);
    END IF;
END
$$;

-- How far the time in an id is from another one, as a class: a minute, an hour, or more.
CREATE OR REPLACE FUNCTION ingot.drift_of(id uuid, at bigint) RETURNS smallint
LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE WHEN d <= 60000 THEN 1 WHEN d <= 3600000 THEN 2 ELSE 3 END::smallint
    FROM (SELECT abs(('x' || translate(left(id::text, 13), '-', ''))::bit(48)::bigint - at / 1000) AS d) AS d
$$;
