-- Remove a tenant, and answer what it was. Who acted in it is out with it: what refers to its row goes in the same
-- transaction, and who is adding to that is waited for. The same call sent again, after its answer was lost, finds its act.
CREATE OR REPLACE FUNCTION ingot.remove_tenant(of_tenant uuid, act json) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '3s'
AS $$
DECLARE
    known ingot.tenants;
    was json;
    name text;
BEGIN
    SELECT t.* INTO known FROM ingot.tenants AS t WHERE t.id = of_tenant FOR UPDATE;
    IF NOT FOUND THEN
        SELECT a.before::json INTO was FROM ingot.audit AS a
        WHERE a.id = (act ->> 'id')::uuid AND a.tenant = of_tenant AND a.action = 'tenant.removed';
        IF NOT FOUND THEN
            PERFORM ingot.refuse('IN006', 'there is no such tenant');
        END IF;
        RETURN was;
    END IF;
    was := ingot.tenant_told(known);
    FOREACH name IN ARRAY ARRAY[
        'tokens',
        'worker_credentials',
        'worker_roles',
        'app_roles',
        'tenant_groups',
        'members',
        'invitations',
        'records'
    ] LOOP
        EXECUTE format('DELETE FROM ingot.%I WHERE tenant = $1', name) USING of_tenant;
    END LOOP;
    DELETE FROM ingot.tenants AS t WHERE t.id = of_tenant;
    INSERT INTO ingot.removed_tenants (tenant, removed_at) VALUES (of_tenant, ingot.clock());
    PERFORM ingot.note_act(act, of_tenant, 'tenant.removed', 'tenant/' || (was ->> 'slug'), was, NULL);
    PERFORM pg_notify('ingot_ready', '');  -- The other processes take a look.
    RETURN was;
END
$$;

-- Keep a tenant from being removed until the transaction ends, or refuse one that is not there; none stands for all.
CREATE OR REPLACE FUNCTION ingot.hold_tenant(of_tenant uuid) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM FROM ingot.tenants AS t WHERE t.id = of_tenant FOR KEY SHARE;
    IF of_tenant IS NOT NULL AND NOT FOUND THEN
        PERFORM ingot.refuse('IN006', 'there is no such tenant');
    END IF;
END
$$;

-- Take away so many rows, at most, of what removed tenants left behind, and answer how many those were of each, and in a row
-- without a tenant how many tenants are left. One of them is cleared by one at a time. Who had begun before a tenant was
-- removed may still add to it: it is gone when nothing was there for so long (`settled_after`).
CREATE OR REPLACE FUNCTION ingot.clear_tenants(rows_max integer, settled_after bigint)
RETURNS TABLE (tenant text, cleared bigint, gone boolean)
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
    of_tenant uuid;
    since bigint;
    rows_left bigint := rows_max;
BEGIN
    FOR of_tenant, since IN
        SELECT r.tenant, r.empty_since FROM ingot.removed_tenants AS r ORDER BY r.tenant FOR UPDATE SKIP LOCKED
    LOOP
        EXIT WHEN rows_left <= 0;
        tenant := of_tenant;
        gone := false;
        cleared := ingot.clear_jobs(of_tenant, rows_left);
        cleared := cleared + ingot.clear_blobs(of_tenant, rows_left - cleared);
        cleared := cleared + ingot.clear_rows(of_tenant, rows_left - cleared);
        rows_left := rows_left - cleared;
        IF cleared > 0 OR EXISTS (SELECT FROM ingot.jobs AS j WHERE j.tenant = of_tenant)
            OR EXISTS (SELECT FROM ingot.leases AS l WHERE l.tenant = of_tenant) THEN
            UPDATE ingot.removed_tenants AS r SET empty_since = NULL
            WHERE r.tenant = of_tenant AND r.empty_since IS NOT NULL;
        ELSIF since IS NULL THEN
            UPDATE ingot.removed_tenants AS r SET empty_since = now WHERE r.tenant = of_tenant;
        ELSIF since <= now - settled_after THEN
            DELETE FROM ingot.removed_tenants AS r WHERE r.tenant = of_tenant;
            gone := true;
        END IF;
        RETURN NEXT;
    END LOOP;
    RETURN QUERY SELECT NULL, count(*), false FROM ingot.removed_tenants;
END
$$;

-- Ask running jobs of a removed tenant to stop, and take away up to so many that do not run, with all that belongs to them.
-- A job that moves at this moment is waited for: it is looked at again once its rows are ours, and left for the next round
-- when it runs by then. Nothing is told of it: there is nobody to tell.
CREATE OR REPLACE FUNCTION ingot.clear_jobs(of_tenant uuid, jobs_max bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    ids uuid[];
BEGIN
    UPDATE ingot.leases AS l SET cancel_requested = true WHERE l.id = ANY (ARRAY(
        SELECT l.id FROM ingot.leases AS l WHERE l.tenant = of_tenant AND NOT l.cancel_requested
        ORDER BY l.id LIMIT jobs_max FOR UPDATE SKIP LOCKED
    ));
    ids := ARRAY(
        SELECT j.id FROM ingot.jobs AS j
        WHERE j.tenant = of_tenant AND NOT EXISTS (SELECT FROM ingot.leases AS l WHERE l.id = j.id)
        ORDER BY j.type, j.id NULLS FIRST LIMIT jobs_max FOR UPDATE SKIP LOCKED
    );
    IF cardinality(ids) = 0 THEN
        RETURN 0;
    END IF;
    PERFORM FROM ingot.blocked AS s WHERE s.id = ANY (ids) ORDER BY s.id FOR UPDATE;
    PERFORM FROM ingot.later AS s WHERE s.id = ANY (ids) ORDER BY s.id FOR UPDATE;
    PERFORM FROM ingot.ready AS s WHERE s.id = ANY (ids) ORDER BY s.id FOR UPDATE;
    ids := ARRAY(SELECT i FROM unnest(ids) AS i WHERE NOT EXISTS (SELECT FROM ingot.leases AS l WHERE l.id = i));
    DELETE FROM ingot.blocked AS s WHERE s.id = ANY (ids);
    DELETE FROM ingot.later AS s WHERE s.id = ANY (ids);
    DELETE FROM ingot.ready AS s WHERE s.id = ANY (ids);
    DELETE FROM ingot.canceled AS s WHERE s.id = ANY (ids);
    DELETE FROM ingot.waits AS w WHERE w.job = ANY (ids);
    DELETE FROM ingot.waits AS w WHERE w.parent = ANY (ids) AND w.open;
    DELETE FROM ingot.tags AS g WHERE g.job = ANY (ids);
    DELETE FROM ingot.logs AS g WHERE g.job = ANY (ids);
    DELETE FROM ingot.outcomes AS o WHERE o.job = ANY (ids);
    DELETE FROM ingot.jobs AS j WHERE j.id = ANY (ids);
    PERFORM ingot.drop_job_files(ids);
    RETURN cardinality(ids);
END
$$;

-- Take away up to so many rows of a removed tenant that belong to no job.
CREATE OR REPLACE FUNCTION ingot.clear_rows(of_tenant uuid, rows_max bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    name text;
    cleared bigint := 0;
    removed bigint;
BEGIN
    FOREACH name IN ARRAY ARRAY[
        'idempotency_keys',
        'dedupe_keys',
        'reuse_keys',
        'endings',
        'history',
        'count_deltas',
        'counts',
        'batch_deltas',
        'batches',
        'buckets',
        'usage',
        'usage_owed',
        'askers',
        'records',
        'workers',
        'event_keys',
        'event_floors',
        'events'
    ] LOOP
        EXIT WHEN cleared >= rows_max;
        EXECUTE format('DELETE FROM ingot.%1$I WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM ingot.%1$I WHERE tenant = $1 LIMIT $2))', name) USING of_tenant, rows_max - cleared;
        GET DIAGNOSTICS removed = ROW_COUNT;
        cleared := cleared + removed;
    END LOOP;
    RETURN cleared;
END
$$;
