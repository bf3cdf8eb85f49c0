-- Lease ready jobs of these lanes to those who ask, in the order in which they asked. Tenants take turns of so many
-- jobs (`steps`) and give so many in all (`shares`); the lanes of a tenant have the same turn. A scan of a lane begins after
-- one position and ends before another that are given for it, and where a tenant has several it ends after so many jobs (`all_reads`): when one of them
-- ends there, what comes behind that is left for the next call, since more of this lane may come before it. The answer names lanes and askers by their place, counted from 1.
CREATE OR REPLACE FUNCTION ingot.claim(
    lane_types text[], lane_tenants uuid[], lane_keys text[],
    after_priorities smallint[], after_run_ats bigint[], after_ids uuid[],
    end_priorities smallint[], end_run_ats bigint[], end_ids uuid[],
    turns integer[], steps integer[], shares integer[],
    worker_ids text[], hosts text[], pids bigint[], limits integer[], lease_lengths bigint[],
    all_reads integer[] DEFAULT NULL
) RETURNS TABLE (
    asker integer, lane integer, id text, priority smallint, run_at bigint, attempts integer, failures integer,
    crashes integer, max_attempts integer, fence bigint, started_at bigint, payload bytea, metadata bytea, created_at bigint,
    source text, depth integer, timeout_seconds double precision, texts text[], tags text[], last_error text, after text[],
    runs_anyway boolean, inputs text
)
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
    bounded boolean := ingot.is_bounded();
    alone boolean := cardinality(lane_types) = 1;
    crowded boolean := NOT alone AND (SELECT count(DISTINCT t) FROM unnest(turns) AS t) < cardinality(turns);  -- Lanes share a turn.
    tenant_rooms bigint[];
    type_rooms bigint[];
    rooms bigint[];
    busy boolean[];
    typed boolean := false;  -- Whether a limit is shared by the lanes of a type.
    wanted integer := (SELECT sum(l) FROM unnest(limits) AS l);
BEGIN
    IF wanted IS NULL OR EXISTS (SELECT FROM unnest(limits, lease_lengths) AS a (jobs, lease) WHERE
        a.jobs IS NULL OR a.jobs NOT BETWEEN 1 AND 1000 OR a.lease IS NULL OR a.lease NOT BETWEEN 1 AND 604800000000) THEN
        RAISE EXCEPTION 'a claim is for 1 to 1000 jobs, and for up to a week' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- Nothing is handed out of tenants that were removed.
    IF EXISTS (SELECT FROM ingot.removed_tenants) THEN
        shares := ARRAY(
            SELECT CASE WHEN EXISTS (SELECT FROM ingot.removed_tenants AS r WHERE r.tenant = l.tenant) THEN 0 ELSE l.share END
            FROM unnest(lane_tenants, shares) WITH ORDINALITY AS l (tenant, share, lane) ORDER BY l.lane
        );
    END IF;
    IF bounded THEN
        SELECT array_agg(r.of_tenant), array_agg(r.of_type), array_agg(CASE WHEN r.busy THEN 0 ELSE
                greatest(least(r.of_tenant, r.of_type, r.of_key), CASE WHEN r.limited THEN 0 END) END),
            array_agg(r.busy)
        INTO tenant_rooms, type_rooms, rooms, busy
        FROM (
            SELECT r.*, coalesce(r.of_tenant, r.of_type, r.of_key) IS NOT NULL AS limited
            FROM ingot.rooms(lane_types, lane_tenants, lane_keys) AS r
        ) AS r;
        typed := EXISTS (SELECT FROM unnest(type_rooms) AS r WHERE r IS NOT NULL);
        -- Rows of nobody tell how many more may run of the lanes that are limited; -1 of those that somebody else claims now.
        -- Failures stand for what may run of all lanes of the tenant and type.
        FOR asker, lane, attempts, failures IN
            SELECT 0, s.lane::integer, CASE WHEN s.busy THEN -1 ELSE s.room END,
                CASE WHEN coalesce(s.tenant_room, s.type_room) IS NOT NULL THEN greatest(least(s.tenant_room, s.type_room), 0) END
            FROM unnest(rooms, busy, tenant_rooms, type_rooms)
                WITH ORDINALITY AS s (room, busy, tenant_room, type_room, lane)
            WHERE s.room IS NOT NULL
        LOOP
            RETURN NEXT;
        END LOOP;
    END IF;
    RETURN QUERY
    WITH lanes AS MATERIALIZED (
        SELECT * FROM unnest(
            lane_types, lane_tenants, lane_keys, after_priorities, after_run_ats, after_ids, end_priorities, end_run_ats,
            end_ids, turns, steps, shares, all_reads, rooms, tenant_rooms, type_rooms
        ) WITH ORDINALITY AS l (
            type, tenant, limit_key, priority, run_at, id, end_priority, end_run_at, end_id, turn, step, share, reads, room,
            tenant_room, type_room, lane
        )
    ),
    heads AS MATERIALIZED (
        SELECT r.*, l.lane::integer, l.turn, l.step, least(l.share, l.tenant_room) AS share, l.type, l.type_room, l.reads
        FROM lanes AS l CROSS JOIN LATERAL (
            SELECT r.*, row_number() OVER () AS in_lane FROM (
                SELECT r.ctid AS at, r.id, r.priority, r.run_at FROM ingot.ready AS r
                WHERE r.type = l.type AND r.tenant = l.tenant AND r.limit_key = l.limit_key
                    AND (r.priority, r.run_at, r.id) > (l.priority, l.run_at, l.id)
                    AND (r.priority, r.run_at, r.id) < (l.end_priority, l.end_run_at, l.end_id)
                ORDER BY r.priority, r.run_at, r.id
                LIMIT least(l.share, wanted, l.reads, l.room)
                FOR UPDATE SKIP LOCKED
            ) AS r
        ) AS r
    ),
    -- What each tenant gives, in its order: with one lane that of the lane, otherwise that of all that is allowed. Lanes of
    -- a type share what may run of it.
    offered AS (
        SELECT at, lane, turn, step, share, in_lane AS rank FROM heads WHERE NOT crowded
        UNION ALL
        SELECT at, lane, turn, step, share, rank FROM (
            SELECT *, min(CASE WHEN in_lane = reads THEN rank END) OVER (PARTITION BY turn) AS last_sure FROM (
                SELECT *, row_number() OVER (PARTITION BY turn ORDER BY priority, run_at, id) AS rank FROM (
                    SELECT * FROM heads WHERE crowded AND NOT typed
                    UNION ALL
                    SELECT at, id, priority, run_at, in_lane, lane, turn, step, share, type, type_room, reads FROM (
                        SELECT *, row_number() OVER (PARTITION BY turn, type COLLATE "C" ORDER BY priority, run_at, id) AS of_type
                        FROM heads WHERE crowded AND typed
                    ) AS h
                    WHERE of_type <= coalesce(type_room, of_type)
                ) AS h
            ) AS h
        ) AS h
        WHERE rank <= coalesce(last_sure, rank)
    ),
    ranked AS MATERIALIZED (
        SELECT at, lane, rank AS place FROM offered WHERE alone
        UNION ALL
        SELECT at, lane, place FROM (
            SELECT at, lane, row_number() OVER (ORDER BY (rank - 1) / step, turn, rank) AS place FROM offered
            WHERE NOT alone AND rank <= share
        ) AS h
        WHERE place <= wanted
    ),
    askers AS MATERIALIZED (
        SELECT a.*, sum(a.jobs) OVER (ORDER BY a.asker) AS upto, nextval('ingot.fences') AS fence
        FROM unnest(worker_ids, hosts, pids, limits, lease_lengths)
            WITH ORDINALITY AS a (worker_id, host, pid, jobs, lease, asker)
        WHERE EXISTS (SELECT FROM heads)
    ),
    picked AS MATERIALIZED (
        SELECT h.at, h.lane, h.place, a.asker::integer, a.fence, a.worker_id, a.host, a.pid, now + a.lease AS expires_at
        FROM askers AS a CROSS JOIN LATERAL (
            SELECT * FROM ranked AS h WHERE h.place > a.upto - a.jobs AND h.place <= a.upto LIMIT a.jobs
        ) AS h
    ),
    taken AS (
        DELETE FROM ingot.ready AS r USING picked AS p WHERE r.ctid = p.at
        RETURNING r.id, r.tenant, r.type, r.limit_key, r.batch, r.dedupe_key, r.priority, r.run_at, r.attempts + 1 AS attempts,
            r.failures, r.crashes, r.max_attempts, r.told_at, p.lane, p.fence, p.place, p.asker, p.worker_id, p.host, p.pid, p.expires_at
    ),
    alike AS MATERIALIZED (
        SELECT tenant, type, attempts, failures, crashes, fence, worker_id,
            '["' || string_agg(id::text, '","') || '"]' AS ids, count(*) AS jobs
        FROM taken GROUP BY tenant, type, attempts, failures, crashes, fence, worker_id
    ),
    kinds AS MATERIALIZED (
        -- By the place of the lane: a join would look at every lane for every job.
        SELECT CASE WHEN EXISTS (SELECT FROM ingot.definitions) THEN ARRAY(
            SELECT coalesce((
                SELECT d.timeout_seconds FROM ingot.definitions AS d
                WHERE d.type = l.type AND d.tenant IN (l.tenant, '00000000-0000-0000-0000-000000000000')
                ORDER BY d.tenant DESC LIMIT 1
            ), 3600) FROM lanes AS l ORDER BY l.lane
        ) END AS timeouts,
        EXISTS (SELECT FROM ingot.tags AS g) AS tags, EXISTS (SELECT FROM ingot.waits AS w) AS waits
    ),
    leased AS (
        INSERT INTO ingot.leases (
            id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts, fence,
            told_at, worker_id, host, pid, started_at, expires_at, changed_by
        )
        SELECT id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts, fence,
            told_at, worker_id, host, pid, now, expires_at, pg_current_xact_id()
        FROM taken
    ),
    told AS (
        INSERT INTO ingot.events (tenant, position, at, entries)
        SELECT tenant, ingot.position(pg_current_xact_id()), now, '[' || string_agg(
            ingot.news('job.started', ids, type, 'running', attempts, failures, crashes, fence, worker_id, NULL, NULL, NULL,
                false, NULL, NULL), ',') || ']'
        FROM alike GROUP BY tenant
        ON CONFLICT (tenant, position) DO UPDATE SET entries = ingot.then(events.entries, excluded.entries)
    ),
    counted AS (
        INSERT INTO ingot.count_deltas (tenant, type, status, jobs)
        SELECT c.tenant, c.type, s.status, s.sign * c.jobs
        FROM (SELECT tenant, type, sum(jobs) AS jobs FROM alike GROUP BY tenant, type) AS c
        CROSS JOIN (VALUES ('queued', -1), ('running', 1)) AS s (status, sign)
    )
    SELECT t.asker, t.lane, t.id::text, t.priority, t.run_at, t.attempts, t.failures, t.crashes, t.max_attempts, t.fence, now,
        j.payload, j.metadata, j.created_at, j.source, j.depth, coalesce(k.timeouts[t.lane], 3600),
        CASE WHEN coalesce(j.source_ref, j.created_by, j.correlation_id, j.trace_id, j.idempotency_key, j.dedupe_key, j.batch) IS NOT NULL
                OR j.payload_blob IS NOT NULL
            THEN ARRAY[j.source_ref, j.created_by, j.correlation_id, j.trace_id, j.idempotency_key, j.dedupe_key, j.batch,
                encode(j.payload_blob, 'hex')] END,
        CASE WHEN k.tags THEN nullif(ARRAY(SELECT g.tag FROM ingot.tags AS g WHERE g.job = t.id ORDER BY g.tag), '{}') END,
        CASE WHEN t.failures + t.crashes > 0 THEN (
            SELECT o.error FROM ingot.outcomes AS o WHERE o.job = t.id AND o.error IS NOT NULL ORDER BY o.fence DESC LIMIT 1
        ) END,
        CASE WHEN k.waits THEN nullif(ARRAY(SELECT w.parent::text FROM ingot.waits AS w WHERE w.job = t.id ORDER BY w.parent), '{}') END,
        CASE WHEN k.waits THEN EXISTS (SELECT FROM ingot.waits AS w WHERE w.job = t.id AND w.runs_anyway) END, j.inputs::text
    FROM (SELECT * FROM taken ORDER BY place) AS t
    CROSS JOIN kinds AS k
    CROSS JOIN LATERAL (SELECT j.* FROM ingot.jobs AS j WHERE j.id = t.id LIMIT 1) AS j;
END
$$;

-- Where the ready work of each of these lanes begins that has some, after the position given for it.
CREATE OR REPLACE FUNCTION ingot.heads(
    lane_types text[], lane_tenants uuid[], lane_keys text[],
    after_priorities smallint[], after_run_ats bigint[], after_ids uuid[]
) RETURNS TABLE (lane integer, priority smallint, run_at bigint, id text)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT l.lane::integer, r.priority, r.run_at, r.id::text
    FROM unnest(lane_types, lane_tenants, lane_keys, after_priorities, after_run_ats, after_ids)
        WITH ORDINALITY AS l (type, tenant, limit_key, priority, run_at, id, lane)
    CROSS JOIN LATERAL (
        SELECT r.priority, r.run_at, r.id FROM ingot.ready AS r
        WHERE r.type = l.type AND r.tenant = l.tenant AND r.limit_key = l.limit_key
            AND (r.priority, r.run_at, r.id) > (l.priority, l.run_at, l.id)
        ORDER BY r.priority, r.run_at, r.id LIMIT 1
    ) AS r;
END
$$;
