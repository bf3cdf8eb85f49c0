-- Remove a tenant, and return its last state as JSON. Its credentials, roles and members are deleted in the same
-- transaction, which waits for transactions that are adding such rows. A call that is repeated after its answer was lost
-- finds the audit entry.
CREATE OR REPLACE FUNCTION ingot.remove_tenant(of_tenant uuid, act json) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '3s'
AS $$
DECLARE
    existing ingot.tenants;
    old_value json;
    table_name text;
BEGIN
    SELECT t.* INTO existing FROM ingot.tenants AS t WHERE t.id = of_tenant FOR UPDATE;
    IF NOT FOUND THEN
        SELECT a.before::json INTO old_value FROM ingot.audit AS a
        WHERE a.id = (act ->> 'id')::uuid AND a.tenant = of_tenant AND a.action = 'tenant.removed';
        IF NOT FOUND THEN
            PERFORM ingot.refuse('IN006', 'there is no such tenant');
        END IF;
        RETURN old_value;
    END IF;
    old_value := ingot.tenant_audit_json(existing);
    FOREACH table_name IN ARRAY ARRAY[
        'tokens',
        'worker_credentials',
        'worker_roles',
        'app_roles',
        'tenant_groups',
        'members',
        'invitations',
        'departures',
        'records'
    ] LOOP
        EXECUTE format('DELETE FROM ingot.%I WHERE tenant = $1', table_name) USING of_tenant;
    END LOOP;
    UPDATE ingot.users AS u SET tenant = NULL WHERE u.tenant = of_tenant;
    UPDATE ingot.sessions AS s SET tenant = NULL WHERE s.tenant = of_tenant;
    DELETE FROM ingot.tenants AS t WHERE t.id = of_tenant;
    INSERT INTO ingot.removed_tenants (tenant, removed_at) VALUES (of_tenant, ingot.clock());
    PERFORM ingot.add_audit_entry(act, of_tenant, 'tenant.removed', 'tenant/' || (old_value ->> 'slug'), old_value, NULL);
    PERFORM pg_notify('ingot_ready', '');  -- Makes the other processes poll.
    RETURN old_value;
END
$$;

-- Lock a tenant against removal until the transaction ends, or refuse if it does not exist. NULL stands for all tenants.
CREATE OR REPLACE FUNCTION ingot.lock_tenant(of_tenant uuid) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM FROM ingot.tenants AS t WHERE t.id = of_tenant FOR KEY SHARE;
    IF of_tenant IS NOT NULL AND NOT FOUND THEN
        PERFORM ingot.refuse('IN006', 'there is no such tenant');
    END IF;
END
$$;

-- Delete up to `rows_max` rows of removed tenants, and return the number for each tenant, and in a row without a tenant the
-- number of tenants left. Each tenant is cleared by one transaction at a time. Transactions that began before the removal
-- may still add rows, so a tenant is finished only after it was empty for `quiet_micros`.
CREATE OR REPLACE FUNCTION ingot.clear_tenants(rows_max integer, quiet_micros bigint)
RETURNS TABLE (tenant text, rows_cleared bigint, removed boolean)
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
    empty_since bigint;
    rows_left bigint := rows_max;
BEGIN
    FOR of_tenant, empty_since IN
        SELECT r.tenant, r.empty_since FROM ingot.removed_tenants AS r ORDER BY r.tenant FOR UPDATE SKIP LOCKED
    LOOP
        EXIT WHEN rows_left <= 0;
        tenant := of_tenant;
        removed := false;
        rows_cleared := ingot.clear_jobs(of_tenant, rows_left);
        rows_cleared := rows_cleared + ingot.clear_blobs(of_tenant, rows_left - rows_cleared);
        rows_cleared := rows_cleared + ingot.clear_rows(of_tenant, rows_left - rows_cleared);
        rows_left := rows_left - rows_cleared;
        IF rows_cleared > 0 OR EXISTS (SELECT FROM ingot.jobs AS j WHERE j.tenant = of_tenant)
            OR EXISTS (SELECT FROM ingot.leases AS l WHERE l.tenant = of_tenant) THEN
            UPDATE ingot.removed_tenants AS r SET empty_since = NULL
            WHERE r.tenant = of_tenant AND r.empty_since IS NOT NULL;
        ELSIF empty_since IS NULL THEN
            UPDATE ingot.removed_tenants AS r SET empty_since = now WHERE r.tenant = of_tenant;
        ELSIF empty_since <= now - quiet_micros THEN
            DELETE FROM ingot.removed_tenants AS r WHERE r.tenant = of_tenant;
            removed := true;
        END IF;
        RETURN NEXT;
    END LOOP;
    RETURN QUERY SELECT NULL, count(*), false FROM ingot.removed_tenants;
END
$$;

-- Ask running jobs of a removed tenant to stop, and delete up to `jobs_max` others with everything that belongs to them.
-- The status rows are locked before the second check for leases, so a job that was claimed meanwhile is left for the next
-- call. No events are written: the tenant has no readers any more.
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

-- Delete up to `rows_max` rows of a removed tenant that belong to no job.
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
    table_name text;
    rows_cleared bigint := 0;
    rows_deleted bigint;
BEGIN
    FOREACH table_name IN ARRAY ARRAY[
        'idempotency_keys',
        'dedupe_keys',
        'reuse_keys',
        'endings',
        'history',
        'count_deltas',
        'counts',
        'count_totals',
        'batch_deltas',
        'batches',
        'buckets',
        'tenant_types',
        'type_counts',
        'usage',
        'usage_owed',
        'askers',
        'records',
        'workers',
        'event_keys',
        'event_floors',
        'events'
    ] LOOP
        EXIT WHEN rows_cleared >= rows_max;
        EXECUTE format('DELETE FROM ingot.%1$I WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM ingot.%1$I WHERE tenant = $1 LIMIT $2))', table_name) USING of_tenant, rows_max - rows_cleared;
        GET DIAGNOSTICS rows_deleted = ROW_COUNT;
        rows_cleared := rows_cleared + rows_deleted;
    END LOOP;
    RETURN rows_cleared;
END
$$;
