-- How the table names whose a worker is: that of none serves all tenants.
CREATE OR REPLACE FUNCTION ingot.crew_of(of_tenant uuid) RETURNS uuid
LANGUAGE sql IMMUTABLE
AS $$ SELECT coalesce(of_tenant, '00000000-0000-0000-0000-000000000000') $$;

-- Whether the credential of a worker is disabled, where it has one of its own tenant.
CREATE OR REPLACE FUNCTION ingot.crew_disabled(w ingot.workers) RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT EXISTS (
        SELECT FROM ingot.worker_credentials AS c
        WHERE c.id = split_part(w.id, '/', 1) AND ingot.crew_of(c.tenant) = w.tenant AND NOT c.enabled
    )
$$;

-- A worker as JSON.
CREATE OR REPLACE FUNCTION ingot.crew_row(w ingot.workers) RETURNS text
LANGUAGE sql STABLE
AS $$
    SELECT json_build_object(
        'id', w.id, 'tenant', nullif(w.tenant, ingot.crew_of(NULL)), 'types', w.types, 'hostname', w.hostname,
        'version', w.version, 'metadata', convert_from(w.metadata, 'UTF8'), 'registered_at', w.registered_at,
        'registered_by', w.registered_by, 'seen_at', w.seen_at, 'online', w.online, 'draining', w.draining,
        'disabled', ingot.crew_disabled(w))
$$;

-- A worker as the audit log tells it.
CREATE OR REPLACE FUNCTION ingot.crew_told(w ingot.workers) RETURNS json
LANGUAGE sql STABLE
AS $$
    SELECT json_build_object(
        'id', w.id, 'tenant', nullif(w.tenant, ingot.crew_of(NULL)),
        'status', CASE
            WHEN ingot.crew_disabled(w) THEN 'disabled' WHEN NOT w.online THEN 'offline'
            WHEN w.draining THEN 'draining' ELSE 'online' END,
        'types', w.types, 'registered_at', ingot.moment(w.registered_at), 'seen_at', ingot.moment(w.seen_at),
        'hostname', w.hostname, 'version', w.version, 'metadata', convert_from(w.metadata, 'UTF8')::json,
        'registered_by', w.registered_by)
$$;

-- What an event says about a worker, as JSON text where the type of a job would stand.
CREATE OR REPLACE FUNCTION ingot.crew_news(name text, id text, status text, types text[], hostname text, version text)
RETURNS text
LANGUAGE sql STABLE
AS $$
    SELECT json_build_array(name, id, json_build_object(
        'id', id, 'status', status, 'types', types, 'hostname', hostname, 'version', version
    )::text, 'queued', 0, 0, 0, 0)::text
$$;

-- Tell the tenant of a worker about it. One that serves all is nobody's news.
CREATE OR REPLACE FUNCTION ingot.tell_of_worker(name text, w ingot.workers, status text) RETURNS void
LANGUAGE sql VOLATILE
AS $$
    INSERT INTO ingot.events (tenant, position, at, entries)
    SELECT w.tenant, ingot.position(pg_current_xact_id()), ingot.clock(),
        '[' || ingot.crew_news(name, w.id, status, w.types, w.hostname, w.version) || ']'
    WHERE w.tenant <> ingot.crew_of(NULL)
    ON CONFLICT (tenant, position) DO UPDATE SET entries = ingot.then(events.entries, excluded.entries)
$$;

-- A worker, which nobody else changes until the end of the transaction.
CREATE OR REPLACE FUNCTION ingot.lock_worker(of_tenant uuid, of_id text) RETURNS ingot.workers
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    known ingot.workers;
BEGIN
    SELECT w.* INTO known FROM ingot.workers AS w WHERE w.tenant = ingot.crew_of(of_tenant) AND w.id = of_id FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM ingot.refuse('IN020', format('there is no worker ''%s'' in this tenant', left(of_id, 64)));
    END IF;
    -- A version written by a transaction that came after this one would put its event after ours.
    PERFORM ingot.begin_again() FROM ingot.workers AS w
    WHERE w.tenant = ingot.crew_of(of_tenant) AND w.id = of_id AND age(w.xmin) < age(pg_current_xact_id()::xid);
    RETURN known;
END
$$;

-- Keep a worker, or what it says of itself now: it is online, and drains no more.
CREATE OR REPLACE FUNCTION ingot.register_worker(
    of_tenant uuid, of_id text, new_types text[], new_hostname text, new_version text, new_metadata bytea, new_by text
) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '3s'
AS $$
DECLARE
    now bigint := ingot.clock();
    before ingot.workers;
    known ingot.workers;
BEGIN
    PERFORM ingot.expect_tenant(of_tenant);
    INSERT INTO ingot.workers (tenant, id, types, registered_at, seen_at, online, draining)
    VALUES (ingot.crew_of(of_tenant), of_id, new_types, now, now, false, false)
    ON CONFLICT (tenant, id) DO NOTHING;
    before := ingot.lock_worker(of_tenant, of_id);
    UPDATE ingot.workers AS w SET
        types = new_types, hostname = new_hostname, version = new_version, metadata = new_metadata, registered_at = now,
        registered_by = new_by, seen_at = now, online = true, draining = false
    WHERE w.tenant = ingot.crew_of(of_tenant) AND w.id = of_id RETURNING w.* INTO known;
    IF NOT before.online THEN
        PERFORM ingot.tell_of_worker('worker.online', known, 'online');
    END IF;
    RETURN ingot.crew_row(known);
END
$$;

-- Hear a worker: renew what it names, give back what it has held for longer than `grace` and does not name, and note that
-- it was seen, when the last time is so long ago. Rows with a place are leases that were renewed, those with places or
-- without are as in `ingot.settle`, and the one with `draining` is the worker.
CREATE OR REPLACE FUNCTION ingot.hear_worker(
    of_tenant uuid, of_id text, grace bigint, note_after bigint, jobs_max integer, ids uuid[], fences bigint[],
    tenants uuid[], lease_lengths bigint[], percents double precision[], stages text[], workers text[]
) RETURNS TABLE (
    place integer, expires_at bigint, cancel_requested boolean, draining boolean, places integer[], status text,
    attempts integer, run_at bigint, type text, tenant text, limit_key text, first bigint[], parents text[], batch text, said text,
    micros bigint[]
)
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
    known ingot.workers;
    unnamed uuid[];
    held_under bigint[];
BEGIN
    -- Most of them have nothing new to tell, and write nothing.
    SELECT w.* INTO known FROM ingot.workers AS w WHERE w.tenant = ingot.crew_of(of_tenant) AND w.id = of_id;
    IF known.online IS NOT TRUE OR now - known.seen_at >= note_after THEN
        known := ingot.lock_worker(of_tenant, of_id);
        UPDATE ingot.workers AS w SET seen_at = now, online = true
        WHERE w.tenant = ingot.crew_of(of_tenant) AND w.id = of_id;
        IF NOT known.online THEN
            PERFORM ingot.tell_of_worker('worker.online', known, CASE WHEN known.draining THEN 'draining' ELSE 'online' END);
        END IF;
    END IF;
    IF cardinality(ids) > 0 THEN
        RETURN QUERY
        SELECT r.place, r.expires_at, r.cancel_requested, NULL::boolean, NULL::integer[], NULL::text, NULL::integer,
            NULL::bigint, NULL::text, NULL::text, NULL::text, NULL::bigint[], NULL::text[], NULL::text,
            NULL::text, NULL::bigint[]
        FROM ingot.renew(ids, fences, tenants, lease_lengths, percents, stages, workers) AS r;
    END IF;
    -- What somebody has to do with at this moment is not waited for: the worker is heard of again.
    SELECT array_agg(u.id), array_agg(u.fence) INTO unnamed, held_under FROM (
        SELECT l.id, l.fence FROM ingot.leases AS l
        WHERE l.worker_id = of_id AND (of_tenant IS NULL OR l.tenant = of_tenant) AND l.started_at < now - grace
            AND (l.id, l.fence) NOT IN (SELECT n.id, n.fence FROM unnest(ids, fences) AS n (id, fence))
        LIMIT jobs_max FOR UPDATE SKIP LOCKED
    ) AS u;
    IF unnamed IS NOT NULL THEN
        RETURN QUERY
        SELECT NULL::integer, NULL::bigint, NULL::boolean, NULL::boolean, s.* FROM ingot.settle(
            unnamed, held_under, NULL, array_fill('released'::text, ARRAY[cardinality(unnamed)]), NULL, NULL, NULL, NULL, NULL
        ) AS s;
    END IF;
    RETURN QUERY
    SELECT NULL::integer, NULL::bigint, NULL::boolean, known.draining, NULL::integer[], NULL::text, NULL::integer,
        NULL::bigint, NULL::text, NULL::text, NULL::text, NULL::bigint[], NULL::text[], NULL::text, NULL::text,
        NULL::bigint[];
END
$$;

-- Have a worker take no more work.
CREATE OR REPLACE FUNCTION ingot.drain_worker(of_tenant uuid, of_id text, act text) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '3s'
AS $$
DECLARE
    known ingot.workers := ingot.lock_worker(of_tenant, of_id);
    changed ingot.workers;
BEGIN
    UPDATE ingot.workers AS w SET draining = true
    WHERE w.tenant = known.tenant AND w.id = known.id AND NOT w.draining
    RETURNING w.* INTO changed;
    IF FOUND AND act IS NOT NULL THEN
        PERFORM ingot.note_act(act::json, of_tenant, 'worker.drained', 'worker/' || of_id,
            ingot.crew_told(known), ingot.crew_told(changed));
    END IF;
    RETURN ingot.find_worker(of_tenant, of_id);
END
$$;

-- Give back what a worker holds, up to so many jobs, and forget it when that was all. Rows are as in `ingot.settle`; the
-- one with `gone` tells whether it is forgotten.
CREATE OR REPLACE FUNCTION ingot.remove_worker(of_tenant uuid, of_id text, jobs_max integer, act text)
RETURNS TABLE (
    gone boolean, places integer[], status text, attempts integer, run_at bigint, type text, tenant text, limit_key text,
    first bigint[], parents text[], batch text, said text,
    micros bigint[]
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
DECLARE
    known ingot.workers := ingot.lock_worker(of_tenant, of_id);
    held uuid[];
    held_under bigint[];
    is_gone boolean;
BEGIN
    SELECT array_agg(h.id), array_agg(h.fence), count(*) < jobs_max INTO held, held_under, is_gone FROM (
        SELECT l.id, l.fence FROM ingot.leases AS l
        WHERE l.worker_id = of_id AND (of_tenant IS NULL OR l.tenant = of_tenant) LIMIT jobs_max
    ) AS h;
    IF held IS NOT NULL THEN
        RETURN QUERY
        SELECT NULL::boolean, s.* FROM ingot.settle(
            held, held_under, NULL, array_fill('released'::text, ARRAY[cardinality(held)]), NULL, NULL, NULL, NULL, NULL
        ) AS s;
    END IF;
    IF is_gone THEN
        DELETE FROM ingot.workers AS w WHERE w.tenant = known.tenant AND w.id = known.id;
        IF act IS NOT NULL THEN
            PERFORM ingot.note_act(act::json, of_tenant, 'worker.removed', 'worker/' || of_id, ingot.crew_told(known), NULL);
        END IF;
        IF known.online THEN
            PERFORM ingot.tell_of_worker('worker.offline', known, 'offline');
        END IF;
    END IF;
    RETURN QUERY
    SELECT is_gone, NULL::integer[], NULL::text, NULL::integer, NULL::bigint, NULL::text, NULL::text, NULL::text,
        NULL::bigint[], NULL::text[], NULL::text, NULL::text,
        NULL::bigint[];
END
$$;

-- Take workers that were silent for so long for offline, and forget those that stayed so.
CREATE OR REPLACE FUNCTION ingot.tend_workers(silent_after bigint, forget_after bigint, workers_max integer)
RETURNS TABLE (silent integer, forgotten integer)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    now bigint := ingot.clock();
    missed_now integer := 0;
    forgotten_now integer := 0;
BEGIN
    IF now >= ingot.up_since() + silent_after THEN
        WITH quiet AS MATERIALIZED (
            SELECT w.tenant, w.id FROM ingot.workers AS w WHERE w.online AND w.seen_at <= now - silent_after
            ORDER BY w.seen_at LIMIT workers_max FOR UPDATE SKIP LOCKED
        ),
        missed AS (
            UPDATE ingot.workers AS w SET online = false FROM quiet AS q WHERE w.tenant = q.tenant AND w.id = q.id
            RETURNING w.*
        ),
        told AS (
            INSERT INTO ingot.events (tenant, position, at, entries)
            SELECT tenant, ingot.position(pg_current_xact_id()), now, '[' || string_agg(
                ingot.crew_news('worker.offline', id, 'offline', types, hostname, version), ',' ORDER BY id) || ']'
            FROM missed WHERE tenant <> ingot.crew_of(NULL) GROUP BY tenant
        )
        SELECT count(*) INTO missed_now FROM missed;
    END IF;
    WITH old AS MATERIALIZED (
        SELECT w.tenant, w.id FROM ingot.workers AS w WHERE NOT w.online AND w.seen_at <= now - forget_after
        ORDER BY w.seen_at LIMIT workers_max FOR UPDATE SKIP LOCKED
    ),
    gone AS (
        DELETE FROM ingot.workers AS w USING old AS o WHERE w.tenant = o.tenant AND w.id = o.id RETURNING w.id
    )
    SELECT count(*) INTO forgotten_now FROM gone;
    RETURN QUERY SELECT missed_now, forgotten_now;
END
$$;

CREATE OR REPLACE FUNCTION ingot.find_worker(of_tenant uuid, of_id text) RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT ingot.crew_row(w) FROM ingot.workers AS w WHERE w.tenant = ingot.crew_of(of_tenant) AND w.id = of_id
$$;

-- Workers of a tenant, or those that serve all; by id, from behind one.
CREATE OR REPLACE FUNCTION ingot.list_workers(of_tenant uuid, after text, most integer) RETURNS SETOF text
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT ingot.crew_row(w) FROM ingot.workers AS w
    WHERE w.tenant = ingot.crew_of(of_tenant) AND w.id > after COLLATE "C" ORDER BY w.id LIMIT most
$$;

-- All workers that are to take no more work, of all tenants.
CREATE OR REPLACE FUNCTION ingot.list_draining() RETURNS TABLE (tenant text, id text)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT nullif(w.tenant, ingot.crew_of(NULL))::text, w.id FROM ingot.workers AS w WHERE w.draining
$$;

-- Of these leases, those that are still held.
CREATE OR REPLACE FUNCTION ingot.check_leases(ids uuid[], fences bigint[])
RETURNS TABLE (place integer, expires_at bigint, cancel_requested boolean)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
    SELECT a.place::integer, l.expires_at, l.cancel_requested
    FROM unnest(ids, fences) WITH ORDINALITY AS a (id, fence, place)
    JOIN ingot.leases AS l ON l.id = a.id AND l.fence = a.fence
$$;
