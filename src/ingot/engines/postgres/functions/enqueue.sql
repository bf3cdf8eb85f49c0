-- Accept orders. Orders of one command are accepted together or not at all: a command that meets a key which is
-- taken, or names a tenant that is not there, is left out of the answer and has changed nothing.
CREATE OR REPLACE FUNCTION ingot.enqueue(
    commands integer[], ids uuid[], tenants uuid[], types text[], payloads bytea[], metadatas bytea[],
    priorities smallint[], run_ats bigint[], delays bigint[], max_attempts integer[],
    idempotency_keys text[], digests bytea[], dedupe_keys text[], sources text[], source_refs text[],
    created_bys text[], correlation_ids text[], trace_ids text[], depths integer[],
    tagged_ids uuid[], tagged_tenants uuid[], tags text[], tagged_commands integer[]
) RETURNS TABLE (place integer, priority smallint, run_at bigint, max_attempts_ integer, now_ bigint)
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
        SELECT * FROM unnest(
            commands, ids, tenants, types, payloads, metadatas, priorities, run_ats, delays, max_attempts,
            idempotency_keys, digests, dedupe_keys, sources, source_refs, created_bys, correlation_ids, trace_ids, depths
        ) WITH ORDINALITY AS o (
            command, id, tenant, type, payload, metadata, priority, run_at, delay, max_attempts,
            idempotency_key, digest, dedupe_key, source, source_ref, created_by, correlation_id, trace_id, depth, place
        )
    ),
    kinds AS MATERIALIZED (
        SELECT k.tenant, k.type, t.id IS NOT NULL AS known,
            coalesce(d.priority, 3::smallint) AS priority, coalesce(d.max_attempts, 5) AS max_attempts
        FROM (SELECT DISTINCT tenant, type FROM asked) AS k
        LEFT JOIN ingot.tenants AS t ON t.id = k.tenant
        LEFT JOIN LATERAL (
            SELECT d.* FROM ingot.definitions AS d
            WHERE d.type = k.type AND d.tenant IN (k.tenant, '00000000-0000-0000-0000-000000000000')
            ORDER BY d.tenant DESC LIMIT 1
        ) AS d ON true
    ),
    refused AS MATERIALIZED (
        SELECT o.command FROM asked AS o JOIN kinds AS k ON k.tenant = o.tenant AND k.type = o.type WHERE NOT k.known
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
            idempotency_key, dedupe_key, depth
        )
        SELECT id, tenant, type, payload, metadata, now, source, source_ref, created_by, correlation_id, trace_id,
            idempotency_key, dedupe_key, depth
        FROM taken
    ),
    keyed AS (
        INSERT INTO ingot.idempotency_keys (tenant, type, key, job, digest)
        SELECT tenant, type, idempotency_key, id, digest FROM taken WHERE idempotency_key IS NOT NULL
        ORDER BY tenant, type, idempotency_key
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
            id, tenant, type, limit_key, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts, fence
        )
        SELECT id, tenant, type, '', dedupe_key, own_priority, due_at, 0, 0, 0, own_max_attempts, 0 FROM taken WHERE due_at <= now
    ),
    waiting AS (
        INSERT INTO ingot.later (
            id, tenant, type, limit_key, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts, fence
        )
        SELECT id, tenant, type, '', dedupe_key, own_priority, due_at, 0, 0, 0, own_max_attempts, 0 FROM taken WHERE due_at > now
    ),
    told AS (
        INSERT INTO ingot.events (tenant, position, at, entries)
        SELECT tenant, ingot.position(pg_current_xact_id()), now, '[' || string_agg(entry, ',') || ']'
        FROM (
            SELECT tenant, ingot.news('job.created', '["' || string_agg(id::text, '","' ORDER BY place) || '"]', type, 'queued',
                0, 0, 0, 0, NULL, due_at, NULL, NULL, false, NULL, NULL) AS entry
            FROM taken GROUP BY tenant, type, due_at
        ) AS t
        GROUP BY tenant
    ),
    counted AS (
        INSERT INTO ingot.count_deltas (tenant, type, status, jobs)
        SELECT tenant, type, 'queued', count(*) FROM taken GROUP BY tenant, type
    )
    SELECT place::integer, own_priority, due_at, own_max_attempts, now FROM taken ORDER BY place;
END
$$;
