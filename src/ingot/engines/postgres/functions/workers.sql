-- The tenant of a worker in the table: all zeros for workers that serve all tenants.
CREATE OR REPLACE FUNCTION ingot.tenant_or_zero(of_tenant uuid) RETURNS uuid
LANGUAGE sql IMMUTABLE
AS $$ SELECT coalesce(of_tenant, '00000000-0000-0000-0000-000000000000') $$;

-- Whether the credential of a worker, in the same tenant, is disabled.
CREATE OR REPLACE FUNCTION ingot.is_worker_disabled(w ingot.workers) RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT EXISTS (
        SELECT FROM ingot.worker_credentials AS c
        WHERE c.id = split_part(w.id, '/', 1) AND ingot.tenant_or_zero(c.tenant) = w.tenant AND NOT c.enabled
    )
$$;

-- A worker as JSON.
CREATE OR REPLACE FUNCTION ingot.worker_json(w ingot.workers) RETURNS text
LANGUAGE sql STABLE
AS $$
    SELECT json_build_object(
        'id', w.id, 'tenant', nullif(w.tenant, ingot.tenant_or_zero(NULL)), 'types', w.types, 'hostname', w.hostname,
        'version', w.version, 'protocol', w.protocol, 'metadata', convert_from(w.metadata, 'UTF8'), 'registered_at', w.registered_at,
        'registered_by', w.registered_by, 'seen_at', w.seen_at, 'online', w.online, 'draining', w.draining,
        'disabled', ingot.is_worker_disabled(w))
$$;

-- A worker as JSON for the audit log.
CREATE OR REPLACE FUNCTION ingot.worker_audit_json(w ingot.workers) RETURNS json
LANGUAGE sql STABLE
AS $$
    SELECT json_build_object(
        'id', w.id, 'tenant', nullif(w.tenant, ingot.tenant_or_zero(NULL)),
        'status', CASE
            WHEN ingot.is_worker_disabled(w) THEN 'disabled' WHEN NOT w.online THEN 'offline'
            WHEN w.draining THEN 'draining' ELSE 'online' END,
        'types', w.types, 'registered_at', ingot.iso_timestamp(w.registered_at), 'seen_at', ingot.iso_timestamp(w.seen_at),
        'hostname', w.hostname, 'version', w.version, 'protocol', w.protocol,
        'metadata', convert_from(w.metadata, 'UTF8')::json,
        'registered_by', w.registered_by)
$$;

-- The event log entry about a worker: its data is a JSON text in the place of the job type.
CREATE OR REPLACE FUNCTION ingot.worker_event_entry(name text, id text, status text, types text[], hostname text, version text)
RETURNS text
LANGUAGE sql STABLE
AS $$
    SELECT json_build_array(name, id, json_build_object(
        'id', id, 'status', status, 'types', types, 'hostname', hostname, 'version', version
    )::text, 'queued', 0, 0, 0, 0)::text
$$;

-- Publish an event about a worker to its tenant. Workers that serve all tenants have no events.
CREATE OR REPLACE FUNCTION ingot.append_worker_event(name text, w ingot.workers, status text) RETURNS void
LANGUAGE sql VOLATILE
AS $$
    INSERT INTO ingot.events (tenant, position, at, entries)
    SELECT w.tenant, ingot.event_position(pg_current_xact_id()), ingot.clock(),
        '[' || ingot.worker_event_entry(name, w.id, status, w.types, w.hostname, w.version) || ']'
    WHERE w.tenant <> ingot.tenant_or_zero(NULL)
    ON CONFLICT (tenant, position) DO UPDATE SET entries = ingot.join_entries(events.entries, excluded.entries)
$$;

-- Lock a worker until the transaction ends, and return it.
CREATE OR REPLACE FUNCTION ingot.lock_worker(of_tenant uuid, of_id text) RETURNS ingot.workers
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    worker ingot.workers;
BEGIN
    SELECT w.* INTO worker FROM ingot.workers AS w WHERE w.tenant = ingot.tenant_or_zero(of_tenant) AND w.id = of_id FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM ingot.refuse('IN020', format('there is no worker ''%s'' in this tenant', left(of_id, 64)));
    END IF;
    -- Our event must not come before that of a later transaction whose row version we change.
    PERFORM ingot.retry_transaction() FROM ingot.workers AS w
    WHERE w.tenant = ingot.tenant_or_zero(of_tenant) AND w.id = of_id AND age(w.xmin) < age(pg_current_xact_id()::xid);
    RETURN worker;
END
$$;

-- Register a worker, or update its registration. It is online and not draining afterwards.
CREATE OR REPLACE FUNCTION ingot.register_worker(
    of_tenant uuid, of_id text, new_types text[], new_hostname text, new_version text, new_metadata bytea, new_by text,
    new_protocol integer DEFAULT NULL
) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '3s'
AS $$
DECLARE
    now bigint := ingot.clock();
    previous ingot.workers;
    worker ingot.workers;
BEGIN
    PERFORM ingot.expect_tenant(of_tenant);
    INSERT INTO ingot.workers (tenant, id, types, registered_at, seen_at, online, draining)
    VALUES (ingot.tenant_or_zero(of_tenant), of_id, new_types, now, now, false, false)
    ON CONFLICT (tenant, id) DO NOTHING;
    previous := ingot.lock_worker(of_tenant, of_id);
    UPDATE ingot.workers AS w SET
        types = new_types, hostname = new_hostname, version = new_version, metadata = new_metadata, registered_at = now, protocol = new_protocol,
        registered_by = new_by, seen_at = now, online = true, draining = false
    WHERE w.tenant = ingot.tenant_or_zero(of_tenant) AND w.id = of_id RETURNING w.* INTO worker;
    IF NOT previous.online THEN
        PERFORM ingot.append_worker_event('worker.online', worker, 'online');
    END IF;
    RETURN ingot.worker_json(worker);
END
$$;

-- Process the heartbeat of a worker: renew the leases that it names, release those older than `grace` that it does not name,
-- and update `seen_at` at most once per `seen_interval`. Rows with `place` are renewed leases, the row with `draining` is the
-- worker, and all others are rows of `ingot.settle`.
CREATE OR REPLACE FUNCTION ingot.record_heartbeat(
    of_tenant uuid, of_id text, grace bigint, seen_interval bigint, jobs_max integer, ids uuid[], fences bigint[],
    tenants uuid[], lease_lengths bigint[], percents double precision[], stages text[], workers text[]
) RETURNS TABLE (
    place integer, expires_at bigint, cancel_requested boolean, draining boolean, places integer[], status text,
    attempts integer, run_at bigint, type text, tenant text, limit_key text, first bigint[], parents text[], batch text,
    outcome text, micros bigint[]
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
    worker ingot.workers;
    unnamed_jobs uuid[];
    unnamed_fences bigint[];
BEGIN
    -- Most heartbeats do not change the worker, and write nothing here.
    SELECT w.* INTO worker FROM ingot.workers AS w WHERE w.tenant = ingot.tenant_or_zero(of_tenant) AND w.id = of_id;
    IF worker.online IS NOT TRUE OR now - worker.seen_at >= seen_interval THEN
        worker := ingot.lock_worker(of_tenant, of_id);
        UPDATE ingot.workers AS w SET seen_at = now, online = true
        WHERE w.tenant = ingot.tenant_or_zero(of_tenant) AND w.id = of_id;
        IF NOT worker.online THEN
            PERFORM ingot.append_worker_event('worker.online', worker,
                CASE WHEN worker.draining THEN 'draining' ELSE 'online' END);
        END IF;
    END IF;
    IF cardinality(ids) > 0 THEN
        RETURN QUERY
        SELECT r.place, r.expires_at, r.cancel_requested, NULL::boolean, NULL::integer[], NULL::text, NULL::integer,
            NULL::bigint, NULL::text, NULL::text, NULL::text, NULL::bigint[], NULL::text[], NULL::text,
            NULL::text, NULL::bigint[]
        FROM ingot.renew(ids, fences, tenants, lease_lengths, percents, stages, workers) AS r;
    END IF;
    -- Leases that another transaction has locked are left for the next heartbeat.
    SELECT array_agg(u.id), array_agg(u.fence) INTO unnamed_jobs, unnamed_fences FROM (
        SELECT l.id, l.fence FROM ingot.leases AS l
        WHERE l.worker_id = of_id AND (of_tenant IS NULL OR l.tenant = of_tenant) AND l.started_at < now - grace
            AND (l.id, l.fence) NOT IN (SELECT n.id, n.fence FROM unnest(ids, fences) AS n (id, fence))
        LIMIT jobs_max FOR UPDATE SKIP LOCKED
    ) AS u;
    IF unnamed_jobs IS NOT NULL THEN
        RETURN QUERY
        SELECT NULL::integer, NULL::bigint, NULL::boolean, NULL::boolean, s.* FROM ingot.settle(
            unnamed_jobs, unnamed_fences, NULL, array_fill('released'::text, ARRAY[cardinality(unnamed_jobs)]), NULL,
            NULL, NULL, NULL, NULL
        ) AS s;
    END IF;
    RETURN QUERY
    SELECT NULL::integer, NULL::bigint, NULL::boolean, worker.draining, NULL::integer[], NULL::text, NULL::integer,
        NULL::bigint, NULL::text, NULL::text, NULL::text, NULL::bigint[], NULL::text[], NULL::text, NULL::text,
        NULL::bigint[];
END
$$;

-- Make a worker claim no more jobs.
CREATE OR REPLACE FUNCTION ingot.drain_worker(of_tenant uuid, of_id text, act text) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '3s'
AS $$
DECLARE
    existing ingot.workers := ingot.lock_worker(of_tenant, of_id);
    changed ingot.workers;
BEGIN
    UPDATE ingot.workers AS w SET draining = true
    WHERE w.tenant = existing.tenant AND w.id = existing.id AND NOT w.draining
    RETURNING w.* INTO changed;
    IF FOUND AND act IS NOT NULL THEN
        PERFORM ingot.add_audit_entry(act::json, of_tenant, 'worker.drained', 'worker/' || of_id,
            ingot.worker_audit_json(existing), ingot.worker_audit_json(changed));
    END IF;
    RETURN ingot.find_worker(of_tenant, of_id);
END
$$;

-- Release up to `jobs_max` jobs of a worker, and delete the worker if these were all. Rows are those of `ingot.settle`, and
-- one with `removed`, which is true if the worker was deleted.
CREATE OR REPLACE FUNCTION ingot.remove_worker(of_tenant uuid, of_id text, jobs_max integer, act text)
RETURNS TABLE (
    removed boolean, places integer[], status text, attempts integer, run_at bigint, type text, tenant text, limit_key text,
    first bigint[], parents text[], batch text, outcome text,
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
    worker ingot.workers := ingot.lock_worker(of_tenant, of_id);
    held_jobs uuid[];
    held_fences bigint[];
    is_removed boolean;
BEGIN
    SELECT array_agg(h.id), array_agg(h.fence), count(*) < jobs_max INTO held_jobs, held_fences, is_removed FROM (
        SELECT l.id, l.fence FROM ingot.leases AS l
        WHERE l.worker_id = of_id AND (of_tenant IS NULL OR l.tenant = of_tenant) LIMIT jobs_max
    ) AS h;
    IF held_jobs IS NOT NULL THEN
        RETURN QUERY
        SELECT NULL::boolean, s.* FROM ingot.settle(
            held_jobs, held_fences, NULL, array_fill('released'::text, ARRAY[cardinality(held_jobs)]), NULL, NULL, NULL,
            NULL, NULL
        ) AS s;
    END IF;
    IF is_removed THEN
        DELETE FROM ingot.workers AS w WHERE w.tenant = worker.tenant AND w.id = worker.id;
        IF act IS NOT NULL THEN
            PERFORM ingot.add_audit_entry(act::json, of_tenant, 'worker.removed', 'worker/' || of_id,
                ingot.worker_audit_json(worker), NULL);
        END IF;
        IF worker.online THEN
            PERFORM ingot.append_worker_event('worker.offline', worker, 'offline');
        END IF;
    END IF;
    RETURN QUERY
    SELECT is_removed, NULL::integer[], NULL::text, NULL::integer, NULL::bigint, NULL::text, NULL::text, NULL::text,
        NULL::bigint[], NULL::text[], NULL::text, NULL::text,
        NULL::bigint[];
END
$$;

-- Mark workers that were silent for `silent_after` as offline, and delete those that stayed offline.
CREATE OR REPLACE FUNCTION ingot.maintain_workers(silent_after bigint, forget_after bigint, workers_max integer)
RETURNS TABLE (offline integer, deleted integer)
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
    offline_count integer := 0;
    deleted_count integer := 0;
BEGIN
    IF now >= ingot.server_started_at() + silent_after THEN
        WITH silent AS MATERIALIZED (
            SELECT w.tenant, w.id FROM ingot.workers AS w WHERE w.online AND w.seen_at <= now - silent_after
            ORDER BY w.seen_at LIMIT workers_max FOR UPDATE SKIP LOCKED
        ),
        newly_offline AS (
            UPDATE ingot.workers AS w SET online = false FROM silent AS q WHERE w.tenant = q.tenant AND w.id = q.id
            RETURNING w.*
        ),
        added_events AS (
            INSERT INTO ingot.events (tenant, position, at, entries)
            SELECT tenant, ingot.event_position(pg_current_xact_id()), now, '[' || string_agg(
                ingot.worker_event_entry('worker.offline', id, 'offline', types, hostname, version), ',' ORDER BY id) || ']'
            FROM newly_offline WHERE tenant <> ingot.tenant_or_zero(NULL) GROUP BY tenant
        )
        SELECT count(*) INTO offline_count FROM newly_offline;
    END IF;
    WITH old AS MATERIALIZED (
        SELECT w.tenant, w.id FROM ingot.workers AS w WHERE NOT w.online AND w.seen_at <= now - forget_after
        ORDER BY w.seen_at LIMIT workers_max FOR UPDATE SKIP LOCKED
    ),
    deleted_workers AS (
        DELETE FROM ingot.workers AS w USING old AS o WHERE w.tenant = o.tenant AND w.id = o.id RETURNING w.id
    )
    SELECT count(*) INTO deleted_count FROM deleted_workers;
    RETURN QUERY SELECT offline_count, deleted_count;
END
$$;

CREATE OR REPLACE FUNCTION ingot.find_worker(of_tenant uuid, of_id text) RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT ingot.worker_json(w) FROM ingot.workers AS w WHERE w.tenant = ingot.tenant_or_zero(of_tenant) AND w.id = of_id
$$;

-- Workers of a tenant, or those that serve all tenants; by id, after one.
CREATE OR REPLACE FUNCTION ingot.list_workers(of_tenant uuid, after text, rows_max integer) RETURNS SETOF text
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT ingot.worker_json(w) FROM ingot.workers AS w
    WHERE w.tenant = ingot.tenant_or_zero(of_tenant) AND w.id > after COLLATE "C" ORDER BY w.id LIMIT rows_max
$$;

-- Workers that run jobs of a type, last seen first: those of a tenant and those that serve all tenants, or those of other
-- tenants.
CREATE OR REPLACE FUNCTION ingot.workers_of_type(
    of_tenant uuid, of_type text, of_other_tenants boolean, rows_max integer
) RETURNS SETOF text
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT ingot.worker_json(w) FROM ingot.workers AS w
    WHERE (w.tenant IN (of_tenant, ingot.tenant_or_zero(NULL))) <> of_other_tenants AND of_type = ANY (w.types)
    ORDER BY w.online DESC, w.seen_at DESC LIMIT rows_max
$$;

-- The draining workers of all tenants.
CREATE OR REPLACE FUNCTION ingot.list_draining() RETURNS TABLE (tenant text, id text)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT nullif(w.tenant, ingot.tenant_or_zero(NULL))::text, w.id FROM ingot.workers AS w WHERE w.draining
$$;

-- The number of workers of all tenants for each combination of what their status depends on. All rows are read.
CREATE OR REPLACE FUNCTION ingot.count_workers(silent_since bigint)
RETURNS TABLE (online boolean, silent boolean, draining boolean, disabled boolean, workers bigint)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = on
AS $$
    SELECT w.online, w.seen_at <= silent_since, w.draining, (split_part(w.id, '/', 1), w.tenant) IN (
        SELECT c.id, ingot.tenant_or_zero(c.tenant) FROM ingot.worker_credentials AS c WHERE NOT c.enabled
    ), count(*)
    FROM ingot.workers AS w GROUP BY 1, 2, 3, 4
$$;

-- Those of these leases that still run under their fences.
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
