-- Whether anything limits what runs at once.
CREATE OR REPLACE FUNCTION ingot.is_bounded() RETURNS boolean
LANGUAGE plpgsql STABLE  -- A function in SQL would be planned at each call.
AS $$
BEGIN
    RETURN EXISTS (SELECT FROM ingot.tenants WHERE max_running IS NOT NULL)
        OR EXISTS (SELECT FROM ingot.definitions WHERE max_running IS NOT NULL OR max_running_per_key IS NOT NULL)
        OR EXISTS (SELECT FROM ingot.pauses);
END
$$;

-- Leases are counted by key only where keys are limited. The index is made when it is first needed: it would cost every
-- claim a twentieth of its time.
CREATE OR REPLACE FUNCTION ingot.count_leases() RETURNS void
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

-- How many more jobs may run in each of these lanes, as far as they are limited: in all of the tenant, of the type, of
-- the key. What is limited is claimed by one at a time: its tenant where that has a limit, otherwise its type, is locked until the
-- transaction ends, and `busy` tells that somebody else has it. The lock gives us no transaction id, and the statement
-- that counts sees what those did who had it before. Jobs of a tenant and of a type are counted already, exactly: what
-- was folded and what was not yet.
CREATE OR REPLACE FUNCTION ingot.rooms(lane_types text[], lane_tenants uuid[], lane_keys text[])
RETURNS TABLE (of_tenant bigint, of_type bigint, of_key bigint, busy boolean)
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
    tenant_most integer[];
    type_most integer[];
    key_most integer[];
    names text[];
    free text[];
BEGIN
    SELECT array_agg(l.tenant_most ORDER BY l.lane), array_agg(l.type_most ORDER BY l.lane),
        array_agg(l.key_most ORDER BY l.lane), array_agg(CASE
            WHEN l.tenant_most IS NOT NULL THEN l.tenant::text
            WHEN l.type_most IS NOT NULL OR l.key_most IS NOT NULL THEN concat_ws(' ', l.tenant, l.type)
        END ORDER BY l.lane)
    INTO tenant_most, type_most, key_most, names
    FROM (
        SELECT l.lane, l.type, l.tenant, l.limit_key,
            (SELECT t.max_running FROM ingot.tenants AS t WHERE t.id = l.tenant) AS tenant_most,
            CASE WHEN EXISTS (SELECT FROM ingot.pauses AS p WHERE p.tenant = l.tenant AND p.type = l.type) THEN 0
                ELSE d.max_running END AS type_most,
            CASE WHEN l.limit_key <> '' THEN d.max_running_per_key END AS key_most
        FROM unnest(lane_types, lane_tenants, lane_keys) WITH ORDINALITY AS l (type, tenant, limit_key, lane)
        LEFT JOIN LATERAL (
            SELECT d.max_running, d.max_running_per_key FROM ingot.definitions AS d
            WHERE d.type = l.type AND d.tenant IN (l.tenant, '00000000-0000-0000-0000-000000000000')
            ORDER BY d.tenant DESC LIMIT 1
        ) AS d ON true
    ) AS l;
    free := ARRAY(
        SELECT n.name FROM (SELECT DISTINCT name FROM unnest(names) AS name WHERE name IS NOT NULL OFFSET 0) AS n
        WHERE pg_try_advisory_xact_lock(hashtextextended(n.name, 7303))
    );
    RETURN QUERY
    SELECT l.tenant_most - max(l.of_tenant) OVER (PARTITION BY l.tenant),
        l.type_most - max(l.of_type) OVER (PARTITION BY l.tenant, l.type), l.key_most - l.of_key,
        l.name IS NOT NULL AND l.name NOT IN (SELECT f FROM unnest(free) AS f)
    FROM (
        SELECT l.*,
            CASE WHEN l.tenant_most IS NOT NULL AND row_number() OVER (PARTITION BY l.tenant ORDER BY l.lane) = 1
                THEN (SELECT coalesce(sum(c.jobs), 0)::bigint FROM (
                    SELECT c.jobs FROM ingot.counts AS c WHERE c.tenant = l.tenant AND c.status = 'running' UNION ALL
                    SELECT c.jobs FROM ingot.count_deltas AS c WHERE c.tenant = l.tenant AND c.status = 'running'
                ) AS c) END AS of_tenant,
            CASE WHEN l.type_most > 0 AND row_number() OVER (PARTITION BY l.tenant, l.type ORDER BY l.lane) = 1
                THEN (SELECT coalesce(sum(c.jobs), 0)::bigint FROM (
                    SELECT c.jobs FROM ingot.counts AS c
                    WHERE c.tenant = l.tenant AND c.type = l.type AND c.status = 'running' UNION ALL
                    SELECT c.jobs FROM ingot.count_deltas AS c
                    WHERE c.tenant = l.tenant AND c.type = l.type AND c.status = 'running'
                ) AS c)
                WHEN l.type_most = 0 THEN 0 END AS of_type,
            CASE WHEN l.key_most IS NOT NULL THEN (
                SELECT count(*) FROM ingot.leases AS s
                WHERE s.tenant = l.tenant AND s.type = l.type AND s.limit_key = l.limit_key AND s.limit_key <> ''
            ) END AS of_key
        FROM unnest(lane_types, lane_tenants, lane_keys, tenant_most, type_most, key_most, names)
            WITH ORDINALITY AS l (type, tenant, limit_key, tenant_most, type_most, key_most, name, lane)
    ) AS l
    ORDER BY l.lane;
END
$$;

-- What is capped is enqueued by one at a time: locks those of these tenants, until the transaction ends, and answers them.
CREATE OR REPLACE FUNCTION ingot.lock_capped(of_tenants uuid[]) RETURNS uuid[]
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '3s'
AS $$
DECLARE
    found uuid[] := ARRAY(
        SELECT t.id FROM (SELECT DISTINCT id FROM unnest(of_tenants) AS id) AS o JOIN ingot.tenants AS t ON t.id = o.id
        WHERE t.max_unfinished IS NOT NULL OR t.rate IS NOT NULL ORDER BY t.id
    );
    one uuid;
BEGIN
    FOREACH one IN ARRAY found LOOP
        PERFORM pg_advisory_xact_lock(hashtextextended(one::text, 7304));
    END LOOP;
    RETURN found;
END
$$;

-- How many more jobs each of these tenants may have, and how many it may enqueue now (`whole` ones: what is lost in adding
-- up parts of a job is given back).
CREATE OR REPLACE FUNCTION ingot.caps(of_tenants uuid[], now bigint)
RETURNS TABLE (tenant uuid, jobs_left bigint, rate_left double precision, whole double precision, most double precision, rate double precision)
LANGUAGE sql STABLE
AS $$
    SELECT t.id, t.max_unfinished - (
            SELECT coalesce(sum(c.jobs), 0) FROM (
                SELECT c.jobs FROM ingot.counts AS c
                WHERE c.tenant = t.id AND c.status IN ('blocked', 'queued', 'running')
                UNION ALL
                SELECT d.jobs FROM ingot.count_deltas AS d
                WHERE d.tenant = t.id AND d.status IN ('blocked', 'queued', 'running')
            ) AS c
        )::bigint,
        l.rate_left, floor(l.rate_left + 0.000001), m.most, t.rate
    FROM ingot.tenants AS t
    CROSS JOIN LATERAL (
        SELECT CASE WHEN t.rate IS NOT NULL THEN coalesce(t.burst, greatest(1, ceil(t.rate))) END AS most
    ) AS m
    CROSS JOIN LATERAL (
        SELECT least(m.most, coalesce((
            SELECT b.jobs + greatest(now - b.at, 0) * t.rate / 1000000 FROM ingot.buckets AS b WHERE b.tenant = t.id
        ), m.most)) AS rate_left
    ) AS l
    WHERE t.id = ANY (of_tenants)
$$;

-- Refuse new jobs, given by their tenants, for which one of these has no room.
CREATE OR REPLACE FUNCTION ingot.expect_room(of_tenants uuid[]) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    found record;
BEGIN
    FOR found IN
        SELECT c.*, (SELECT count(*) FROM unnest(of_tenants) AS t WHERE t = c.tenant) AS jobs
        FROM ingot.caps(of_tenants, ingot.clock()) AS c ORDER BY c.tenant
    LOOP
        IF found.jobs > found.jobs_left THEN
            PERFORM ingot.refuse('IN008', format(
                'the tenant may have %s more unfinished jobs, and these are %s', greatest(found.jobs_left, 0), found.jobs
            ));
        ELSIF found.jobs > found.whole THEN
            PERFORM ingot.refuse('IN009', CASE
                WHEN found.jobs > found.most THEN format('the call has %s new jobs; at most %s fit in one call', found.jobs, found.most)
                ELSE format('the tenant may enqueue %s jobs in a second', found.rate)
            END, least(86400, coalesce((least(found.jobs, found.most) - found.rate_left) / nullif(found.rate, 0), 86400))::text);
        END IF;
    END LOOP;
END
$$;

-- Note that workers asked for these types.
CREATE OR REPLACE FUNCTION ingot.note_askers(types text[], tenants uuid[]) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    INSERT INTO ingot.askers (type, tenant, at)
    SELECT a.type, a.tenant, ingot.clock() FROM unnest(types, tenants) AS a (type, tenant) ORDER BY a.type, a.tenant
    ON CONFLICT (type, tenant) DO UPDATE SET at = excluded.at
$$;

-- What limits jobs of a type of a tenant, and when a worker last asked for them.
CREATE OR REPLACE FUNCTION ingot.find_limits(of_tenant uuid, of_type text)
RETURNS TABLE (now bigint, tenant_most integer, type_most integer, key_most integer, asked_at bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT ingot.clock(), (SELECT t.max_running FROM ingot.tenants AS t WHERE t.id = of_tenant), d.max_running,
        d.max_running_per_key, (
            SELECT max(a.at) FROM ingot.askers AS a
            WHERE a.type = of_type AND a.tenant IN (of_tenant, '00000000-0000-0000-0000-000000000000')
        )
    FROM (SELECT) AS one LEFT JOIN LATERAL (
        SELECT d.max_running, d.max_running_per_key FROM ingot.definitions AS d
        WHERE d.type = of_type AND d.tenant IN (of_tenant, '00000000-0000-0000-0000-000000000000')
        ORDER BY d.tenant DESC LIMIT 1
    ) AS d ON true
$$;
