-- Whether any limit on running jobs or any pause exists.
CREATE OR REPLACE FUNCTION ingot.is_bounded() RETURNS boolean
LANGUAGE plpgsql STABLE  -- A function in SQL would be planned at each call.
AS $$
BEGIN
    RETURN EXISTS (SELECT FROM ingot.tenants WHERE max_running IS NOT NULL)
        OR EXISTS (SELECT FROM ingot.definitions WHERE max_running IS NOT NULL OR max_running_per_key IS NOT NULL)
        OR EXISTS (SELECT FROM ingot.pauses);
END
$$;

-- Create the index that counts leases by limit key when the first definition limits keys. Without such limits it would
-- slow every claim by 5 %.
CREATE OR REPLACE FUNCTION ingot.create_lease_key_index() RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '3s'
AS $$
BEGIN
    IF EXISTS (SELECT FROM ingot.definitions WHERE max_running_per_key IS NOT NULL)
        AND to_regclass('ingot.leases_by_key') IS NULL THEN
        CREATE INDEX IF NOT EXISTS leases_by_key ON ingot.leases (tenant, type, limit_key) WHERE limit_key <> '';
    END IF;
END
$$;

-- How many more jobs may run in each of these lanes under the limits of its tenant, type and key; NULL without a limit.
-- Limited lanes are claimed by one transaction at a time: the tenant, if it has a limit, or else the type is locked until
-- the transaction ends, and `busy` is true if another transaction has the lock. The lock assigns no transaction ID, and
-- the counting statement begins after it, so it sees the changes of earlier holders. Running jobs of a tenant and type
-- come from the counts and their deltas, which are exact.
CREATE OR REPLACE FUNCTION ingot.lane_capacities(lane_types text[], lane_tenants uuid[], lane_keys text[])
RETURNS TABLE (tenant_capacity bigint, type_capacity bigint, key_capacity bigint, busy boolean)
LANGUAGE plpgsql VOLATILE
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
    tenant_limits integer[];
    type_limits integer[];
    key_limits integer[];
    lock_names text[];
    acquired_locks text[];
BEGIN
    SELECT array_agg(l.tenant_limit ORDER BY l.lane), array_agg(l.type_limit ORDER BY l.lane),
        array_agg(l.key_limit ORDER BY l.lane), array_agg(CASE
            WHEN l.tenant_limit IS NOT NULL THEN l.tenant::text
            WHEN l.type_limit IS NOT NULL OR l.key_limit IS NOT NULL THEN concat_ws(' ', l.tenant, l.type)
        END ORDER BY l.lane)
    INTO tenant_limits, type_limits, key_limits, lock_names
    FROM (
        SELECT l.lane, l.type, l.tenant, l.limit_key,
            (SELECT t.max_running FROM ingot.tenants AS t WHERE t.id = l.tenant) AS tenant_limit,
            CASE WHEN EXISTS (SELECT FROM ingot.pauses AS p WHERE p.tenant = l.tenant AND p.type = l.type) THEN 0
                ELSE d.max_running END AS type_limit,
            CASE WHEN l.limit_key <> '' THEN d.max_running_per_key END AS key_limit
        FROM unnest(lane_types, lane_tenants, lane_keys) WITH ORDINALITY AS l (type, tenant, limit_key, lane)
        LEFT JOIN LATERAL (
            SELECT d.max_running, d.max_running_per_key FROM ingot.definitions AS d
            WHERE d.type = l.type AND d.tenant IN (l.tenant, '00000000-0000-0000-0000-000000000000')
            ORDER BY d.tenant DESC LIMIT 1
        ) AS d ON true
    ) AS l;
    acquired_locks := ARRAY(
        SELECT n.name FROM (SELECT DISTINCT name FROM unnest(lock_names) AS name WHERE name IS NOT NULL OFFSET 0) AS n
        WHERE pg_try_advisory_xact_lock(hashtextextended(n.name, 7303))
    );
    RETURN QUERY
    SELECT l.tenant_limit - max(l.tenant_running) OVER (PARTITION BY l.tenant),
        l.type_limit - max(l.type_running) OVER (PARTITION BY l.tenant, l.type), l.key_limit - l.key_running,
        l.lock_name IS NOT NULL AND l.lock_name NOT IN (SELECT a FROM unnest(acquired_locks) AS a)
    FROM (
        SELECT l.*,
            CASE WHEN l.tenant_limit IS NOT NULL AND row_number() OVER (PARTITION BY l.tenant ORDER BY l.lane) = 1
                THEN (SELECT coalesce(sum(c.jobs), 0)::bigint FROM (
                    SELECT c.jobs FROM ingot.count_totals AS c WHERE c.tenant = l.tenant AND c.status = 'running' UNION ALL
                    SELECT c.jobs FROM ingot.count_deltas AS c WHERE c.tenant = l.tenant AND c.status = 'running'
                ) AS c) END AS tenant_running,
            CASE WHEN l.type_limit > 0 AND row_number() OVER (PARTITION BY l.tenant, l.type ORDER BY l.lane) = 1
                THEN (SELECT coalesce(sum(c.jobs), 0)::bigint FROM (
                    SELECT c.jobs FROM ingot.counts AS c
                    WHERE c.tenant = l.tenant AND c.type = l.type AND c.status = 'running' UNION ALL
                    SELECT c.jobs FROM ingot.count_deltas AS c
                    WHERE c.tenant = l.tenant AND c.type = l.type AND c.status = 'running'
                ) AS c)
                WHEN l.type_limit = 0 THEN 0 END AS type_running,
            CASE WHEN l.key_limit IS NOT NULL THEN (
                SELECT count(*) FROM ingot.leases AS s
                WHERE s.tenant = l.tenant AND s.type = l.type AND s.limit_key = l.limit_key AND s.limit_key <> ''
            ) END AS key_running
        FROM unnest(lane_types, lane_tenants, lane_keys, tenant_limits, type_limits, key_limits, lock_names)
            WITH ORDINALITY AS l (type, tenant, limit_key, tenant_limit, type_limit, key_limit, lock_name, lane)
    ) AS l
    ORDER BY l.lane;
END
$$;

-- Lock those of these tenants that have a cap or a rate until the transaction ends, and return them. Only one transaction at
-- a time enqueues jobs of such a tenant.
CREATE OR REPLACE FUNCTION ingot.lock_capped_tenants(of_tenants uuid[]) RETURNS uuid[]
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '3s'
AS $$
DECLARE
    capped_tenants uuid[] := ARRAY(
        SELECT t.id FROM (SELECT DISTINCT id FROM unnest(of_tenants) AS id) AS o JOIN ingot.tenants AS t ON t.id = o.id
        WHERE t.max_unfinished IS NOT NULL OR t.rate IS NOT NULL ORDER BY t.id
    );
    capped_tenant uuid;
BEGIN
    FOREACH capped_tenant IN ARRAY capped_tenants LOOP
        PERFORM pg_advisory_xact_lock(hashtextextended(capped_tenant::text, 7304));
    END LOOP;
    RETURN capped_tenants;
END
$$;

-- How many more unfinished jobs each of these tenants may have, and how many it may enqueue now. `rate_jobs_left` is
-- `rate_left` in whole jobs; the small constant makes up for rounding errors.
CREATE OR REPLACE FUNCTION ingot.remaining_caps(of_tenants uuid[], now bigint)
RETURNS TABLE (
    tenant uuid, jobs_left bigint, rate_left double precision, rate_jobs_left double precision, burst_max double precision,
    rate double precision
)
LANGUAGE sql STABLE
AS $$
    SELECT t.id, t.max_unfinished - (
            SELECT coalesce(sum(c.jobs), 0) FROM (
                SELECT c.jobs FROM ingot.count_totals AS c
                WHERE c.tenant = t.id AND c.status IN ('blocked', 'queued', 'running')
                UNION ALL
                SELECT d.jobs FROM ingot.count_deltas AS d
                WHERE d.tenant = t.id AND d.status IN ('blocked', 'queued', 'running')
            ) AS c
        )::bigint,
        l.rate_left, floor(l.rate_left + 0.000001), m.burst_max, t.rate
    FROM ingot.tenants AS t
    CROSS JOIN LATERAL (
        SELECT CASE WHEN t.rate IS NOT NULL THEN coalesce(t.burst, greatest(1, ceil(t.rate))) END AS burst_max
    ) AS m
    CROSS JOIN LATERAL (
        SELECT least(m.burst_max, coalesce((
            SELECT b.jobs + greatest(now - b.at, 0) * t.rate / 1000000 FROM ingot.buckets AS b WHERE b.tenant = t.id
        ), m.burst_max)) AS rate_left
    ) AS l
    WHERE t.id = ANY (of_tenants)
$$;

-- Refuse new jobs, one element of `of_tenants` for each, that exceed the cap or the rate of their tenant.
CREATE OR REPLACE FUNCTION ingot.expect_capacity(of_tenants uuid[]) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    tenant_caps record;
BEGIN
    FOR tenant_caps IN
        SELECT c.*, (SELECT count(*) FROM unnest(of_tenants) AS t WHERE t = c.tenant) AS jobs
        FROM ingot.remaining_caps(of_tenants, ingot.clock()) AS c ORDER BY c.tenant
    LOOP
        IF tenant_caps.jobs > tenant_caps.jobs_left THEN
            PERFORM ingot.refuse('IN008', format(
                'the tenant can have %s more unfinished jobs, got %s', greatest(tenant_caps.jobs_left, 0), tenant_caps.jobs
            ));
        ELSIF tenant_caps.jobs > tenant_caps.rate_jobs_left THEN
            PERFORM ingot.refuse('IN009', CASE
                WHEN tenant_caps.jobs > tenant_caps.burst_max THEN
                    format('a call can enqueue at most %s jobs, got %s', tenant_caps.burst_max, tenant_caps.jobs)
                ELSE format('the tenant can enqueue %s jobs per second', tenant_caps.rate)
            END, least(86400, coalesce(
                (least(tenant_caps.jobs, tenant_caps.burst_max) - tenant_caps.rate_left) / nullif(tenant_caps.rate, 0), 86400
            ))::text);
        END IF;
    END LOOP;
END
$$;

-- Record that workers just asked for jobs of these types, with or without access to files.
CREATE OR REPLACE FUNCTION ingot.record_askers(types text[], tenants uuid[], with_files boolean) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    INSERT INTO ingot.askers (type, tenant, at, files_at)
    SELECT a.type, a.tenant, ingot.clock(), CASE WHEN with_files THEN ingot.clock() END
    FROM unnest(types, tenants) AS a (type, tenant) ORDER BY a.type, a.tenant
    ON CONFLICT (type, tenant) DO UPDATE SET at = excluded.at, files_at = coalesce(excluded.files_at, askers.files_at)
$$;

-- The limits on jobs of a tenant and type, when a worker last asked for them, and when one with access to files did.
CREATE OR REPLACE FUNCTION ingot.find_limits(of_tenant uuid, of_type text)
RETURNS TABLE (
    now bigint, tenant_limit integer, type_limit integer, key_limit integer, asked_at bigint, asked_with_files_at bigint
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT ingot.clock(), (SELECT t.max_running FROM ingot.tenants AS t WHERE t.id = of_tenant), d.max_running,
        d.max_running_per_key, a.at, a.files_at
    FROM (
        SELECT max(a.at) AS at, max(a.files_at) AS files_at FROM ingot.askers AS a
        WHERE a.type = of_type AND a.tenant IN (of_tenant, '00000000-0000-0000-0000-000000000000')
    ) AS a
    LEFT JOIN LATERAL (
        SELECT d.max_running, d.max_running_per_key FROM ingot.definitions AS d
        WHERE d.type = of_type AND d.tenant IN (of_tenant, '00000000-0000-0000-0000-000000000000')
        ORDER BY d.tenant DESC LIMIT 1
    ) AS d ON true
$$;
