-- What the role of a worker says of itself and of what it does. Its tenant is that of its role.

-- Who asks, whom it works for, and the schema that it meets.
CREATE OR REPLACE FUNCTION ingot.worker_hello() RETURNS TABLE (role text, tenant text, schema integer)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$ SELECT session_user::text, ingot.worker_tenant()::text, (SELECT max(number) FROM ingot.migrations) $$;

-- Refuse leases that are named wrongly.
CREATE OR REPLACE FUNCTION ingot.expect_held(ids uuid[], fences bigint[]) RETURNS void
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    PERFORM ingot.expect_list(ids), ingot.expect_list(fences);
    PERFORM ingot.expect(cardinality(ids) <= {jobs.checks.BATCH_JOBS_MAX} AND cardinality(fences) = cardinality(ids),
        'a call names at most {jobs.checks.BATCH_JOBS_MAX} jobs, and a fence for each');
    PERFORM ingot.expect((SELECT count(DISTINCT i) FROM unnest(ids) AS i) = cardinality(ids), 'every job is named once');
END
$$;

-- An instance is there, and can do this; again brings it online again, and ends a drain.
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
    PERFORM ingot.expect(cardinality(types) BETWEEN 1 AND {jobs.checks.CLAIM_TYPES_MAX}, 'a worker names 1 to {jobs.checks.CLAIM_TYPES_MAX} types');
    PERFORM ingot.expect(length(t) <= {jobs.checks.TYPE_CHARS_MAX} AND t ~ '^[A-Za-z0-9][A-Za-z0-9._:/-]*$',
        'a type has up to {jobs.checks.TYPE_CHARS_MAX} letters, digits and . _ : / -')
    FROM unnest(types) AS t;
    PERFORM ingot.expect(hostname IS NULL OR length(hostname) <= {jobs.checks.KEY_CHARS_MAX}, 'a hostname has at most {jobs.checks.KEY_CHARS_MAX} characters');
    PERFORM ingot.expect(version IS NULL OR length(version) <= {jobs.checks.KEY_CHARS_MAX}, 'a version has at most {jobs.checks.KEY_CHARS_MAX} characters');
    PERFORM ingot.register_worker(tenant, worker_id, types, hostname, version, NULL, 'role/' || session_user);
END
$$;

-- An instance is at work on these jobs and on no others: their leases are renewed, and what it has held for longer than 15
-- seconds and does not name is given back. Rows with a place are leases that hold; the one without tells of the worker.
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
    many integer := cardinality(ids);
BEGIN
    PERFORM ingot.expect_held(ids, fences);
    PERFORM ingot.expect(lease_length BETWEEN 1000000 AND {jobs.checks.LEASE_MICROS_MAX}, 'a lease is for a second to a week, in microseconds');
    PERFORM ingot.expect(p IS NULL OR p BETWEEN 0 AND 100, 'a percent goes from 0 to 100') FROM unnest(percents) AS p;
    PERFORM ingot.expect(s IS NULL OR length(s) <= {jobs.checks.STAGE_CHARS_MAX}, 'a stage has at most {jobs.checks.STAGE_CHARS_MAX} characters') FROM unnest(stages) AS s;
    RETURN QUERY
    SELECT h.place, h.expires_at, h.cancel_requested, h.draining FROM ingot.hear_worker(
        tenant, worker_id, 15000000, least(5000000, lease_length / 4), 1000, ids, fences, array_fill(tenant, ARRAY[many]),
        array_fill(lease_length, ARRAY[many]), percents, stages, array_fill(worker_id, ARRAY[many])
    ) AS h
    WHERE h.place IS NOT NULL OR h.draining IS NOT NULL;
END
$$;

-- How these leases of an instance stand, and whether it is to take no more: as in `ingot.worker_hear`, and nothing is written.
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
    PERFORM ingot.expect_held(ids, fences);
    RETURN QUERY
    SELECT a.place::integer, l.expires_at, l.cancel_requested, NULL::boolean
    FROM unnest(ids, fences) WITH ORDINALITY AS a (id, fence, place)
    JOIN ingot.leases AS l ON l.id = a.id AND l.fence = a.fence AND l.tenant = tenant AND l.worker_id = worker_id;
    RETURN QUERY
    SELECT NULL::integer, NULL::bigint, NULL::boolean, w.draining FROM ingot.workers AS w
    WHERE w.tenant = tenant AND w.id = worker_id;
END
$$;

-- Append to the logs of attempts that this role holds; the others are left out of the answer. An offset says behind how
-- much of the log a text comes, so that it can be sent again.
CREATE OR REPLACE FUNCTION ingot.worker_append_logs(ids uuid[], fences bigint[], texts text[], offsets bigint[])
RETURNS TABLE (place integer, ends bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    tenant uuid := ingot.worker_tenant();
    many integer := cardinality(ids);
BEGIN
    PERFORM ingot.expect_held(ids, fences);
    PERFORM ingot.expect_list(texts), ingot.expect_list(offsets);
    PERFORM ingot.expect(cardinality(texts) = many AND cardinality(offsets) = many, 'every job has its text and its offset');
    PERFORM ingot.expect(length(t) <= {jobs.checks.LOG_CHARS_MAX}, 'a text has at most {jobs.checks.LOG_CHARS_MAX} characters') FROM unnest(texts) AS t;
    PERFORM ingot.expect(o BETWEEN 0 AND {jobs.checks.LOG_OFFSET_MAX}, 'an offset goes from 0 to {jobs.checks.LOG_OFFSET_MAX}') FROM unnest(offsets) AS o;
    RETURN QUERY
    SELECT l.place, l.ends FROM ingot.append_logs(
        ids, fences, array_fill(tenant, ARRAY[many]), texts, offsets, {jobs.checks.LOG_CHARS_MAX}, array_fill(session_user::text, ARRAY[many])
    ) AS l;
END
$$;

-- Of these types, those of which there is ready work for this role. It may be limited or paused: a claim tells.
CREATE OR REPLACE FUNCTION ingot.worker_ready(types text[]) RETURNS SETOF text
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    tenant uuid := ingot.worker_tenant();
BEGIN
    PERFORM ingot.expect(cardinality(types) BETWEEN 1 AND {jobs.checks.CLAIM_TYPES_MAX}, 'a worker names 1 to {jobs.checks.CLAIM_TYPES_MAX} types');
    RETURN QUERY SELECT t FROM unnest(types) AS t WHERE ingot.next_key(tenant, t, NULL) IS NOT NULL;
END
$$;

-- An instance goes: what it holds is given back, a thousand jobs at a time, and it is forgotten when that was all.
CREATE OR REPLACE FUNCTION ingot.worker_leave(instance text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    tenant uuid := ingot.worker_tenant();
    worker_id text := ingot.worker_name(instance);
    is_gone boolean;
    given_back boolean;
BEGIN
    SELECT bool_or(r.gone), bool_or(r.places IS NOT NULL) INTO is_gone, given_back
    FROM ingot.remove_worker(tenant, worker_id, 1000, NULL) AS r;
    IF given_back THEN
        PERFORM pg_notify('ingot_ready', '');
    END IF;
    RETURN is_gone;
END
$$;
