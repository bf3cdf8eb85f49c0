-- Registration, heartbeats and logs of workers that use the database directly. The tenant is that of the role.

-- The role and tenant of the caller, and the schema version.
CREATE OR REPLACE FUNCTION ingot.worker_hello() RETURNS TABLE (role text, tenant text, schema integer)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$ SELECT session_user::text, ingot.worker_tenant()::text, (SELECT max(number) FROM ingot.migrations) $$;

-- Validate the arrays that name leases.
CREATE OR REPLACE FUNCTION ingot.expect_leases(ids uuid[], fences bigint[]) RETURNS void
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    PERFORM ingot.expect_list(ids), ingot.expect_list(fences);
    PERFORM ingot.expect(cardinality(ids) <= {jobs.checks.BATCH_JOBS_MAX} AND cardinality(fences) = cardinality(ids),
        'a call must name at most {jobs.checks.BATCH_JOBS_MAX} jobs, and a fence for each');
    PERFORM ingot.expect((SELECT count(DISTINCT i) FROM unnest(ids) AS i) = cardinality(ids), 'every job must be named once');
END
$$;

-- Register an instance and its job types. Registering again marks it as online and not draining.
CREATE OR REPLACE FUNCTION ingot.worker_register(instance text, types text[], hostname text, version text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    tenant uuid := ingot.worker_tenant();
    worker_id text := ingot.worker_name(instance);
BEGIN
    PERFORM ingot.expect_list(types);
    PERFORM ingot.expect(cardinality(types) BETWEEN 1 AND {jobs.checks.CLAIM_TYPES_MAX},
        'a worker must name 1 to {jobs.checks.CLAIM_TYPES_MAX} types');
    PERFORM ingot.expect(length(t) <= {jobs.checks.TYPE_CHARS_MAX} AND t ~ '^[A-Za-z0-9][A-Za-z0-9._:/-]*$',
        'a type must have 1 to {jobs.checks.TYPE_CHARS_MAX} letters, digits and . _ : / -')
    FROM unnest(types) AS t;
    PERFORM ingot.expect(hostname IS NULL OR length(hostname) <= {jobs.checks.KEY_CHARS_MAX},
        'hostname must have at most {jobs.checks.KEY_CHARS_MAX} characters');
    PERFORM ingot.expect(version IS NULL OR length(version) <= {jobs.checks.KEY_CHARS_MAX},
        'version must have at most {jobs.checks.KEY_CHARS_MAX} characters');
    PERFORM ingot.register_worker(tenant, worker_id, types, hostname, version, NULL, 'role/' || session_user);
END
$$;

-- Heartbeat of an instance that works on exactly these jobs: their leases are renewed, and other leases of the instance are
-- released if they are older than 15 seconds. Rows with a place are renewed leases; the row without one is the worker.
CREATE OR REPLACE FUNCTION ingot.worker_hear(
    instance text, lease_length bigint, ids uuid[], fences bigint[], percents double precision[], stages text[]
) RETURNS TABLE (place integer, expires_at bigint, cancel_requested boolean, draining boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    tenant uuid := ingot.worker_tenant();
    worker_id text := ingot.worker_name(instance);
    lease_count integer := cardinality(ids);
BEGIN
    PERFORM ingot.expect_leases(ids, fences);
    PERFORM ingot.expect(lease_length BETWEEN 1000000 AND {jobs.checks.LEASE_MICROS_MAX},
        'the lease length must be between a second and a week, in microseconds');
    PERFORM ingot.expect(p IS NULL OR p BETWEEN 0 AND 100, 'percents must be between 0 and 100') FROM unnest(percents) AS p;
    PERFORM ingot.expect(s IS NULL OR length(s) <= {jobs.checks.STAGE_CHARS_MAX},
        'stages must have at most {jobs.checks.STAGE_CHARS_MAX} characters') FROM unnest(stages) AS s;
    RETURN QUERY
    SELECT h.place, h.expires_at, h.cancel_requested, h.draining FROM ingot.record_heartbeat(
        tenant, worker_id, 15000000, least(4000000, lease_length / 8), 1000, ids, fences, array_fill(tenant, ARRAY[lease_count]),
        array_fill(lease_length, ARRAY[lease_count]), percents, stages, array_fill(worker_id, ARRAY[lease_count])
    ) AS h
    WHERE h.place IS NOT NULL OR h.draining IS NOT NULL;
END
$$;

-- The state of these leases of an instance, and whether it is draining: rows as in `ingot.worker_hear`. Writes nothing.
CREATE OR REPLACE FUNCTION ingot.worker_look(instance text, ids uuid[], fences bigint[])
RETURNS TABLE (place integer, expires_at bigint, cancel_requested boolean, draining boolean)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
    tenant uuid := ingot.worker_tenant();
    worker_id text := ingot.worker_name(instance);
BEGIN
    PERFORM ingot.expect_leases(ids, fences);
    RETURN QUERY
    SELECT a.place::integer, l.expires_at, l.cancel_requested, NULL::boolean
    FROM unnest(ids, fences) WITH ORDINALITY AS a (id, fence, place)
    JOIN ingot.leases AS l ON l.id = a.id AND l.fence = a.fence AND l.tenant = tenant AND l.worker_id = worker_id;
    RETURN QUERY
    SELECT NULL::integer, NULL::bigint, NULL::boolean, w.draining FROM ingot.workers AS w
    WHERE w.tenant = tenant AND w.id = worker_id;
END
$$;

-- Append to the logs of running attempts of this role; others are left out of the result. An offset is the position of a text
-- in its log, so that a text can be sent again safely.
CREATE OR REPLACE FUNCTION ingot.worker_append_logs(ids uuid[], fences bigint[], texts text[], offsets bigint[])
RETURNS TABLE (place integer, ends bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    tenant uuid := ingot.worker_tenant();
    lease_count integer := cardinality(ids);
BEGIN
    PERFORM ingot.expect_leases(ids, fences);
    PERFORM ingot.expect_list(texts), ingot.expect_list(offsets);
    PERFORM ingot.expect(cardinality(texts) = lease_count AND cardinality(offsets) = lease_count,
        'texts and offsets must have one element for each job');
    PERFORM ingot.expect(length(t) <= {jobs.checks.LOG_CHARS_MAX},
        'texts must have at most {jobs.checks.LOG_CHARS_MAX} characters') FROM unnest(texts) AS t;
    PERFORM ingot.expect(o BETWEEN 0 AND {jobs.checks.LOG_OFFSET_MAX},
        'offsets must be between 0 and {jobs.checks.LOG_OFFSET_MAX}') FROM unnest(offsets) AS o;
    RETURN QUERY
    SELECT l.place, l.ends FROM ingot.append_logs(
        ids, fences, array_fill(tenant, ARRAY[lease_count]), texts, offsets, {jobs.checks.LOG_CHARS_MAX},
        array_fill(session_user::text, ARRAY[lease_count])
    ) AS l;
END
$$;

-- Those of these types with ready jobs for this role. Limits and pauses are not checked; a claim may still get nothing.
CREATE OR REPLACE FUNCTION ingot.worker_ready(types text[]) RETURNS SETOF text
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    tenant uuid := ingot.worker_tenant();
BEGIN
    PERFORM ingot.expect(cardinality(types) BETWEEN 1 AND {jobs.checks.CLAIM_TYPES_MAX},
        'a worker must name 1 to {jobs.checks.CLAIM_TYPES_MAX} types');
    RETURN QUERY SELECT t FROM unnest(types) AS t WHERE ingot.next_limit_key(tenant, t, NULL) IS NOT NULL;
END
$$;

-- Unregister an instance: release up to 1000 of its jobs, and delete it if these were all. Returns whether it was deleted.
CREATE OR REPLACE FUNCTION ingot.worker_leave(instance text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    tenant uuid := ingot.worker_tenant();
    worker_id text := ingot.worker_name(instance);
    is_removed boolean;
    any_released boolean;
BEGIN
    SELECT bool_or(r.removed), bool_or(r.places IS NOT NULL) INTO is_removed, any_released
    FROM ingot.remove_worker(tenant, worker_id, 1000, NULL) AS r;
    IF any_released THEN
        PERFORM pg_notify('ingot_ready', '');
    END IF;
    RETURN is_removed;
END
$$;
