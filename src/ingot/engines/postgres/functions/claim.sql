-- Lease ready jobs of these lanes to waiting claims, in the order of the claims. Tenants take turns of `turn_sizes` jobs and
-- give at most `shares` jobs in total; the lanes of one tenant have the same turn. The scan of a lane begins after one
-- position and ends before another. If a tenant has several lanes, a scan also ends after `scan_limits` jobs; then jobs
-- behind that position are left for the next call, because this lane may have more jobs before them. Without files, jobs that
-- have files are left to other workers. The result refers to lanes and claims by their index, counted from 1.
CREATE OR REPLACE FUNCTION ingot.claim(
    lane_types text[], lane_tenants uuid[], lane_keys text[],
    after_priorities smallint[], after_run_ats bigint[], after_ids uuid[],
    end_priorities smallint[], end_run_ats bigint[], end_ids uuid[],
    turns integer[], turn_sizes integer[], shares integer[],
    worker_ids text[], hosts text[], pids bigint[], limits integer[], lease_lengths bigint[],
    scan_limits integer[] DEFAULT NULL, with_files boolean DEFAULT true
) RETURNS TABLE (
    claimer integer, lane integer, id text, priority smallint, run_at bigint, attempts integer, failures integer,
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
    single_lane boolean := cardinality(lane_types) = 1;
    is_after_writes boolean := pg_current_xact_id_if_assigned() IS NOT NULL;
    tenant_capacities bigint[];
    type_capacities bigint[];
    capacities bigint[];
    busy boolean[];  -- Whether another transaction holds the limit of the lane.
    lanes_share_turns boolean;  -- Whether several lanes have the same turn.
    types_limited boolean := false;  -- Whether any type has a limit, which its lanes share.
    jobs_wanted integer := 0;
    claim_limit integer;
    rows ingot.ready[];  -- The locked rows, with the ctid and the lane of each.
    row_ctids tid[];
    row_lanes integer[];
    timeouts double precision[];
    with_definitions boolean;
    with_tags boolean;
    with_waits boolean;
    row_claimers integer[] := '{}';  -- The claim that gets each row, and the fence of each claim that gets any.
    new_fences bigint[] := '{}';
BEGIN
    IF (1 <= ALL (limits) AND {jobs.checks.CLAIM_JOBS_MAX} >= ALL (limits) AND 1 <= ALL (lease_lengths)
        AND {jobs.checks.LEASE_MICROS_MAX} >= ALL (lease_lengths)
        AND cardinality(limits) > 0 AND cardinality(limits) = cardinality(lease_lengths)) IS NOT TRUE THEN
        RAISE EXCEPTION 'a claim must be for 1 to {jobs.checks.CLAIM_JOBS_MAX} jobs and at most a week'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    FOREACH claim_limit IN ARRAY limits LOOP
        jobs_wanted := jobs_wanted + claim_limit;
    END LOOP;
    -- Jobs of removed tenants are not leased.
    IF EXISTS (SELECT FROM ingot.removed_tenants) THEN
        shares := ARRAY(
            SELECT CASE WHEN EXISTS (SELECT FROM ingot.removed_tenants AS r WHERE r.tenant = l.tenant) THEN 0 ELSE l.share END
            FROM unnest(lane_tenants, shares) WITH ORDINALITY AS l (tenant, share, lane) ORDER BY l.lane
        );
    END IF;
    IF bounded THEN
        SELECT array_agg(c.tenant_capacity), array_agg(c.type_capacity), array_agg(CASE WHEN c.busy THEN 0 ELSE
                greatest(least(c.tenant_capacity, c.type_capacity, c.key_capacity), CASE WHEN c.limited THEN 0 END) END),
            array_agg(c.busy)
        INTO tenant_capacities, type_capacities, capacities, busy
        FROM (
            SELECT c.*, coalesce(c.tenant_capacity, c.type_capacity, c.key_capacity) IS NOT NULL AS limited
            FROM ingot.lane_capacities(lane_types, lane_tenants, lane_keys) AS c
        ) AS c;
        types_limited := EXISTS (SELECT FROM unnest(type_capacities) AS c WHERE c IS NOT NULL);
        -- Rows with claimer 0 report the capacity of limited lanes in `attempts`, or -1 if another transaction holds the
        -- limit, and the capacity of all lanes of the tenant and type in `failures`.
        FOR claimer, lane, attempts, failures IN
            SELECT 0, s.lane::integer, CASE WHEN s.busy THEN -1 ELSE s.capacity END,
                CASE WHEN coalesce(s.tenant_capacity, s.type_capacity) IS NOT NULL
                    THEN greatest(least(s.tenant_capacity, s.type_capacity), 0) END
            FROM unnest(capacities, busy, tenant_capacities, type_capacities)
                WITH ORDINALITY AS s (capacity, busy, tenant_capacity, type_capacity, lane)
            WHERE s.capacity IS NOT NULL
        LOOP
            RETURN NEXT;
        END LOOP;
    END IF;
    SELECT array_agg(r.row), array_agg(r.at), array_agg(l.lane)
    INTO rows, row_ctids, row_lanes
    FROM unnest(lane_types) WITH ORDINALITY AS l (type, lane) CROSS JOIN LATERAL (
        SELECT r AS row, r.ctid AS at FROM ingot.ready AS r
        WHERE r.type = l.type AND r.tenant = lane_tenants[l.lane] AND r.limit_key = lane_keys[l.lane]
            AND (r.priority, r.run_at, r.id) > (after_priorities[l.lane], after_run_ats[l.lane], after_ids[l.lane])
            AND (r.priority, r.run_at, r.id) < (end_priorities[l.lane], end_run_ats[l.lane], end_ids[l.lane])
            -- After a write of this transaction, leave rows of transactions that began later: events are ordered by
            -- transaction, so the event of the claim would come before theirs.
            AND (NOT is_after_writes OR age(r.xmin) >= 0)
            AND (with_files OR NOT ingot.has_files(r.id))
        ORDER BY r.priority, r.run_at, r.id
        LIMIT least(shares[l.lane], jobs_wanted, scan_limits[l.lane], capacities[l.lane])
        FOR UPDATE SKIP LOCKED
    ) AS r;
    IF rows IS NULL THEN
        RETURN;
    END IF;
    IF NOT single_lane THEN
        lanes_share_turns := (SELECT count(DISTINCT t) FROM unnest(turns) AS t) < cardinality(turns);
        -- Rank the rows of each turn: in the order of the lane if it has one lane, otherwise by position across its lanes,
        -- within the capacity of each type.
        WITH locked_rows AS MATERIALIZED (
            SELECT h.*, row_number() OVER (PARTITION BY h.lane ORDER BY h.n) AS lane_rank, turns[h.lane] AS turn,
                turn_sizes[h.lane] AS turn_size, least(shares[h.lane], tenant_capacities[h.lane]) AS share,
                type_capacities[h.lane] AS type_capacity, scan_limits[h.lane] AS scan_limit
            FROM (
                SELECT r.priority, r.run_at, r.id, r.type, r.ordinality AS n, row_lanes[r.ordinality] AS lane
                FROM unnest(rows) WITH ORDINALITY AS r
            ) AS h
        ),
        candidates AS (
            SELECT n, lane, turn, turn_size, share, lane_rank AS rank FROM locked_rows WHERE NOT lanes_share_turns
            UNION ALL
            SELECT n, lane, turn, turn_size, share, rank FROM (
                SELECT *, min(CASE WHEN lane_rank = scan_limit THEN rank END) OVER (PARTITION BY turn) AS last_certain_rank FROM (
                    SELECT *, row_number() OVER (PARTITION BY turn ORDER BY priority, run_at, id) AS rank FROM (
                        SELECT *, 0 AS type_rank FROM locked_rows WHERE lanes_share_turns AND NOT types_limited
                        UNION ALL
                        SELECT * FROM (
                            SELECT *, row_number() OVER (
                                PARTITION BY turn, type COLLATE "C" ORDER BY priority, run_at, id
                            ) AS type_rank
                            FROM locked_rows WHERE lanes_share_turns AND types_limited
                        ) AS h
                        WHERE type_rank <= coalesce(type_capacity, type_rank)
                    ) AS h
                ) AS h
            ) AS h
            WHERE rank <= coalesce(last_certain_rank, rank)
        )
        SELECT array_agg(rows[h.n] ORDER BY h.claim_order), array_agg(row_ctids[h.n] ORDER BY h.claim_order),
            array_agg(h.lane ORDER BY h.claim_order)
        INTO rows, row_ctids, row_lanes
        FROM (
            SELECT DISTINCT ON (row_ctids[h.n]) h.n, h.lane, h.claim_order  -- A lane may be passed twice.
            FROM (
                SELECT n, lane, row_number() OVER (ORDER BY (rank - 1) / turn_size, turn, rank) AS claim_order FROM candidates
                WHERE rank <= share
            ) AS h
            WHERE h.claim_order <= jobs_wanted ORDER BY row_ctids[h.n], h.claim_order
        ) AS h;
        IF rows IS NULL THEN
            RETURN;
        END IF;
    END IF;
    FOR number IN 1 .. cardinality(limits) LOOP
        EXIT WHEN cardinality(row_claimers) >= cardinality(row_ctids);
        row_claimers := row_claimers || array_fill(number, ARRAY[limits[number]]);
        new_fences := new_fences || nextval('ingot.fences');
    END LOOP;
    DELETE FROM ingot.ready AS r WHERE r.ctid = ANY (row_ctids);
    INSERT INTO ingot.leases (
        id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts, fence,
        told_at, worker_id, host, pid, started_at, expires_at, changed_by
    )
    SELECT id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts + 1, failures, crashes, max_attempts,
        new_fences[row_claimers[n]], told_at, worker_ids[row_claimers[n]], hosts[row_claimers[n]], pids[row_claimers[n]], now,
        now + lease_lengths[row_claimers[n]], pg_current_xact_id()
    FROM (SELECT r.*, r.ordinality AS n FROM unnest(rows) WITH ORDINALITY AS r) AS r;
    INSERT INTO ingot.events (tenant, position, at, entries)
    SELECT tenant, ingot.event_position(pg_current_xact_id()), now, '[' || string_agg(
        ingot.job_event_entry('job.started', ids, type, 'running', attempts + 1, failures, crashes, new_fences[claimer],
            worker_ids[claimer], NULL, NULL, NULL, false, NULL, NULL), ',') || ']'
    FROM (
        SELECT tenant, type, attempts, failures, crashes, row_claimers[n] AS claimer,
            '["' || string_agg(id::text, '","') || '"]' AS ids
        FROM (SELECT r.*, r.ordinality AS n FROM unnest(rows) WITH ORDINALITY AS r) AS r
        GROUP BY tenant, type, attempts, failures, crashes, row_claimers[n]
    ) AS a
    GROUP BY tenant
    ON CONFLICT (tenant, position) DO UPDATE SET entries = ingot.join_entries(events.entries, excluded.entries);
    INSERT INTO ingot.count_deltas (tenant, type, status, jobs)
    SELECT c.tenant, c.type, s.status, s.sign * c.jobs
    FROM (
        SELECT lane_tenants[l] AS tenant, lane_types[l] AS type, count(*) AS jobs FROM unnest(row_lanes) AS l GROUP BY 1, 2
    ) AS c
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
    SELECT row_claimers[t.n], row_lanes[t.n], t.id::text, t.priority, t.run_at, t.attempts + 1, t.failures, t.crashes,
        t.max_attempts, new_fences[row_claimers[t.n]], now, j.payload, j.metadata, j.created_at, j.source, j.depth,
        coalesce(timeouts[row_lanes[t.n]], 3600),
        CASE WHEN coalesce(j.source_ref, j.created_by, j.correlation_id, j.trace_id, j.idempotency_key, j.dedupe_key,
            j.batch) IS NOT NULL
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

-- Whether a job has input files, or its payload is in a blob. A function, because a claim would prepare a subquery at each call.
CREATE OR REPLACE FUNCTION ingot.has_files(of_job uuid) RETURNS boolean
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RETURN (SELECT j.inputs IS NOT NULL OR j.payload_blob IS NOT NULL FROM ingot.jobs AS j WHERE j.id = of_job);
END
$$;

-- Values that few jobs have. They are functions because a claim would prepare subqueries at each call, used or not.
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

-- The first ready job of each of these lanes after a position. Empty lanes are left out.
CREATE OR REPLACE FUNCTION ingot.lane_heads(
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
