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
    tenant_rooms bigint[];
    type_rooms bigint[];
    rooms bigint[];
    busy boolean[];
    crowded boolean;  -- Whether lanes share a turn.
    typed boolean := false;  -- Whether a limit is shared by the lanes of a type.
    wanted integer := 0;
    one integer;
    rows ingot.ready[];  -- What was locked, and where each row is and the place of its lane.
    ats tid[];
    lanes integer[];
    timeouts double precision[];
    with_definitions boolean;
    with_tags boolean;
    with_waits boolean;
    takers integer[] := '{}';  -- Who gets each row, and the fences of those who get any.
    new_fences bigint[] := '{}';
BEGIN
    IF (1 <= ALL (limits) AND {jobs.checks.CLAIM_JOBS_MAX} >= ALL (limits) AND 1 <= ALL (lease_lengths) AND {jobs.checks.LEASE_MICROS_MAX} >= ALL (lease_lengths)
        AND cardinality(limits) > 0 AND cardinality(limits) = cardinality(lease_lengths)) IS NOT TRUE THEN
        RAISE EXCEPTION 'a claim is for 1 to {jobs.checks.CLAIM_JOBS_MAX} jobs, and for up to a week' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    FOREACH one IN ARRAY limits LOOP
        wanted := wanted + one;
    END LOOP;
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
    SELECT array_agg(r.row), array_agg(r.at), array_agg(l.lane)
    INTO rows, ats, lanes
    FROM unnest(lane_types) WITH ORDINALITY AS l (type, lane) CROSS JOIN LATERAL (
        SELECT r AS row, r.ctid AS at FROM ingot.ready AS r
        WHERE r.type = l.type AND r.tenant = lane_tenants[l.lane] AND r.limit_key = lane_keys[l.lane]
            AND (r.priority, r.run_at, r.id) > (after_priorities[l.lane], after_run_ats[l.lane], after_ids[l.lane])
            AND (r.priority, r.run_at, r.id) < (end_priorities[l.lane], end_run_ats[l.lane], end_ids[l.lane])
        ORDER BY r.priority, r.run_at, r.id
        LIMIT least(shares[l.lane], wanted, all_reads[l.lane], rooms[l.lane])
        FOR UPDATE SKIP LOCKED
    ) AS r;
    IF rows IS NULL THEN
        RETURN;
    END IF;
    IF NOT alone THEN
        crowded := (SELECT count(DISTINCT t) FROM unnest(turns) AS t) < cardinality(turns);
        -- What each tenant gives, in its order: with one lane that of the lane, otherwise that of all that is allowed. Lanes of
        -- a type share what may run of it.
        WITH heads AS MATERIALIZED (
            SELECT h.*, row_number() OVER (PARTITION BY h.lane ORDER BY h.n) AS in_lane, turns[h.lane] AS turn,
                steps[h.lane] AS step, least(shares[h.lane], tenant_rooms[h.lane]) AS share,
                type_rooms[h.lane] AS type_room, all_reads[h.lane] AS reads
            FROM (
                SELECT r.priority, r.run_at, r.id, r.type, r.ordinality AS n, lanes[r.ordinality] AS lane
                FROM unnest(rows) WITH ORDINALITY AS r
            ) AS h
        ),
        offered AS (
            SELECT n, lane, turn, step, share, in_lane AS rank FROM heads WHERE NOT crowded
            UNION ALL
            SELECT n, lane, turn, step, share, rank FROM (
                SELECT *, min(CASE WHEN in_lane = reads THEN rank END) OVER (PARTITION BY turn) AS last_sure FROM (
                    SELECT *, row_number() OVER (PARTITION BY turn ORDER BY priority, run_at, id) AS rank FROM (
                        SELECT *, 0 AS of_type FROM heads WHERE crowded AND NOT typed
                        UNION ALL
                        SELECT * FROM (
                            SELECT *, row_number() OVER (
                                PARTITION BY turn, type COLLATE "C" ORDER BY priority, run_at, id
                            ) AS of_type
                            FROM heads WHERE crowded AND typed
                        ) AS h
                        WHERE of_type <= coalesce(type_room, of_type)
                    ) AS h
                ) AS h
            ) AS h
            WHERE rank <= coalesce(last_sure, rank)
        )
        SELECT array_agg(rows[h.n] ORDER BY h.place), array_agg(ats[h.n] ORDER BY h.place), array_agg(h.lane ORDER BY h.place)
        INTO rows, ats, lanes
        FROM (
            SELECT DISTINCT ON (ats[h.n]) h.n, h.lane, h.place  -- Somebody may name a lane twice.
            FROM (
                SELECT n, lane, row_number() OVER (ORDER BY (rank - 1) / step, turn, rank) AS place FROM offered
                WHERE rank <= share
            ) AS h
            WHERE h.place <= wanted ORDER BY ats[h.n], h.place
        ) AS h;
        IF rows IS NULL THEN
            RETURN;
        END IF;
    END IF;
    FOR taker IN 1 .. cardinality(limits) LOOP
        EXIT WHEN cardinality(takers) >= cardinality(ats);
        takers := takers || array_fill(taker, ARRAY[limits[taker]]);
        new_fences := new_fences || nextval('ingot.fences');
    END LOOP;
    DELETE FROM ingot.ready AS r WHERE r.ctid = ANY (ats);
    INSERT INTO ingot.leases (
        id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts, fence,
        told_at, worker_id, host, pid, started_at, expires_at, changed_by
    )
    SELECT id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts + 1, failures, crashes, max_attempts,
        new_fences[takers[n]], told_at, worker_ids[takers[n]], hosts[takers[n]], pids[takers[n]], now,
        now + lease_lengths[takers[n]], pg_current_xact_id()
    FROM (SELECT r.*, r.ordinality AS n FROM unnest(rows) WITH ORDINALITY AS r) AS r;
    INSERT INTO ingot.events (tenant, position, at, entries)
    SELECT tenant, ingot.position(pg_current_xact_id()), now, '[' || string_agg(
        ingot.news('job.started', ids, type, 'running', attempts + 1, failures, crashes, new_fences[taker], worker_ids[taker],
            NULL, NULL, NULL, false, NULL, NULL), ',') || ']'
    FROM (
        SELECT tenant, type, attempts, failures, crashes, takers[n] AS taker, '["' || string_agg(id::text, '","') || '"]' AS ids
        FROM (SELECT r.*, r.ordinality AS n FROM unnest(rows) WITH ORDINALITY AS r) AS r
        GROUP BY tenant, type, attempts, failures, crashes, takers[n]
    ) AS a
    GROUP BY tenant
    ON CONFLICT (tenant, position) DO UPDATE SET entries = ingot.then(events.entries, excluded.entries);
    INSERT INTO ingot.count_deltas (tenant, type, status, jobs)
    SELECT c.tenant, c.type, s.status, s.sign * c.jobs
    FROM (SELECT lane_tenants[l] AS tenant, lane_types[l] AS type, count(*) AS jobs FROM unnest(lanes) AS l GROUP BY 1, 2) AS c
    CROSS JOIN (VALUES ('queued', -1), ('running', 1)) AS s (status, sign);
    SELECT EXISTS (SELECT FROM ingot.definitions), EXISTS (SELECT FROM ingot.tags), EXISTS (SELECT FROM ingot.waits)
    INTO with_definitions, with_tags, with_waits;
    IF with_definitions THEN
        timeouts := ARRAY(
            SELECT (
                SELECT d.timeout_seconds FROM ingot.definitions AS d
                WHERE d.type = l.type AND d.tenant IN (lane_tenants[l.lane], '00000000-0000-0000-0000-000000000000')
                ORDER BY d.tenant DESC LIMIT 1
            ) FROM unnest(lane_types) WITH ORDINALITY AS l (type, lane) ORDER BY l.lane
        );
    END IF;
    RETURN QUERY
    SELECT takers[t.n], lanes[t.n], t.id::text, t.priority, t.run_at, t.attempts + 1, t.failures, t.crashes, t.max_attempts,
        new_fences[takers[t.n]], now, j.payload, j.metadata, j.created_at, j.source, j.depth,
        coalesce(timeouts[lanes[t.n]], 3600),
        CASE WHEN coalesce(j.source_ref, j.created_by, j.correlation_id, j.trace_id, j.idempotency_key, j.dedupe_key, j.batch) IS NOT NULL
                OR j.payload_blob IS NOT NULL
            THEN ARRAY[j.source_ref, j.created_by, j.correlation_id, j.trace_id, j.idempotency_key, j.dedupe_key, j.batch,
                encode(j.payload_blob, 'hex')] END,
        CASE WHEN with_tags THEN ingot.tags_of(t.id) END,
        CASE WHEN t.failures + t.crashes > 0 THEN ingot.last_error_of(t.id) END,
        CASE WHEN with_waits THEN ingot.parents_of(t.id) END,
        CASE WHEN with_waits THEN ingot.runs_anyway(t.id) END, j.inputs::text
    FROM (SELECT t.*, t.ordinality AS n FROM unnest(rows) WITH ORDINALITY AS t) AS t
    CROSS JOIN LATERAL (SELECT j.* FROM ingot.jobs AS j WHERE j.id = t.id LIMIT 1) AS j;
END
$$;

-- What few jobs have. Functions, because a claim would prepare subqueries at each call, used or not.
CREATE OR REPLACE FUNCTION ingot.tags_of(of_job uuid) RETURNS text[]
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RETURN nullif(ARRAY(SELECT g.tag FROM ingot.tags AS g WHERE g.job = of_job ORDER BY g.tag), '{}');
END
$$;

CREATE OR REPLACE FUNCTION ingot.last_error_of(of_job uuid) RETURNS text
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RETURN (SELECT o.error FROM ingot.outcomes AS o WHERE o.job = of_job AND o.error IS NOT NULL ORDER BY o.fence DESC LIMIT 1);
END
$$;

CREATE OR REPLACE FUNCTION ingot.parents_of(of_job uuid) RETURNS text[]
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RETURN nullif(ARRAY(SELECT w.parent::text FROM ingot.waits AS w WHERE w.job = of_job ORDER BY w.parent), '{}');
END
$$;

CREATE OR REPLACE FUNCTION ingot.runs_anyway(of_job uuid) RETURNS boolean
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RETURN EXISTS (SELECT FROM ingot.waits AS w WHERE w.job = of_job AND w.runs_anyway);
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
