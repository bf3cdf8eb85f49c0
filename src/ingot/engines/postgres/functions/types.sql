-- The types of which a tenant has jobs. A tenant has at most `max_job_types` of them.
--
-- An enqueue that finds its types in `tenant_types` locks nothing. It has a transaction ID before it looks. Retention marks a
-- type without jobs, then stores the ID of a later transaction as the mark, and deletes the type when all transactions with
-- a lower ID have ended: it sees the jobs of each that did not see the mark. An enqueue that sees the mark, or no row, locks
-- the row of its tenant.

-- Add the types of accepted orders to their tenants. Returns the commands that would exceed a limit, and those with new types
-- of a tenant that another transaction has locked: a server never waits for the lock, so it cannot take part in a deadlock.
CREATE OR REPLACE FUNCTION ingot.add_types(
    commands integer[], tenants uuid[], types text[], accepted integer[], from_app boolean
) RETURNS integer[]
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
    of_tenant uuid;
    locked_tenants uuid[] := '{}';
    refused integer[];
BEGIN
    FOR of_tenant IN
        SELECT DISTINCT n.tenant FROM ingot.new_types(commands, tenants, types, accepted) AS n ORDER BY n.tenant
    LOOP
        IF from_app THEN
            PERFORM FROM ingot.type_counts AS c WHERE c.tenant = of_tenant FOR UPDATE;
        END IF;
        IF ingot.lock_types(of_tenant) THEN
            locked_tenants := locked_tenants || of_tenant;
        END IF;
    END LOOP;
    -- The commands that need a new type, from the first of a tenant that exceeds the limit. Another call runs them alone.
    WITH new AS MATERIALIZED (
        SELECT * FROM ingot.new_types(commands, tenants, types, accepted)
    ),
    sums AS (
        SELECT f.tenant, f.command, sum(count(*)) OVER (PARTITION BY f.tenant ORDER BY f.command) AS types
        FROM (SELECT n.tenant, min(n.command) AS command FROM new AS n WHERE NOT n.is_marked GROUP BY n.tenant, n.type) AS f
        GROUP BY f.tenant, f.command
    ),
    full_tenants AS (
        SELECT s.tenant, min(s.command) AS command FROM sums AS s WHERE s.types > ingot.types_left(s.tenant) GROUP BY s.tenant
    )
    SELECT coalesce(array_agg(DISTINCT n.command), '{}') INTO refused FROM new AS n
    LEFT JOIN full_tenants AS f ON f.tenant = n.tenant AND NOT n.is_marked AND f.command <= n.command
    WHERE n.tenant <> ALL (locked_tenants) OR f.tenant IS NOT NULL;
    accepted := ARRAY(SELECT p FROM unnest(accepted) AS p WHERE commands[p] <> ALL (refused));
    WITH new AS MATERIALIZED (
        SELECT DISTINCT n.tenant, n.type, n.is_marked FROM ingot.new_types(commands, tenants, types, accepted) AS n
    ),
    used AS (
        UPDATE ingot.tenant_types AS u SET unused = NULL FROM new AS n
        WHERE n.is_marked AND u.tenant = n.tenant AND u.type = n.type
    ),
    added AS (
        INSERT INTO ingot.tenant_types (tenant, type)
        SELECT n.tenant, n.type FROM new AS n WHERE NOT n.is_marked ORDER BY n.tenant, n.type
    )
    UPDATE ingot.type_counts AS c SET types = c.types + n.types
    FROM (SELECT n.tenant, count(*) AS types FROM new AS n WHERE NOT n.is_marked GROUP BY n.tenant) AS n
    WHERE c.tenant = n.tenant;
    RETURN refused;
END
$$;

-- The types of accepted orders that their tenants have no jobs of, or that are marked as unused, with each command.
CREATE OR REPLACE FUNCTION ingot.new_types(commands integer[], tenants uuid[], types text[], accepted integer[])
RETURNS TABLE (tenant uuid, type text, command integer, is_marked boolean)
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT o.tenant, o.type, o.command, u.type IS NOT NULL
    FROM (SELECT DISTINCT tenants[p] AS tenant, types[p] AS type, commands[p] AS command FROM unnest(accepted) AS p) AS o
    LEFT JOIN LATERAL (
        SELECT u.type, u.unused FROM ingot.tenant_types AS u WHERE u.tenant = o.tenant AND u.type = o.type LIMIT 1
    ) AS u ON true
    WHERE u.type IS NULL OR u.unused IS NOT NULL;
END
$$;

-- How many types a tenant may have, and how many more.
CREATE OR REPLACE FUNCTION ingot.types_max(of_tenant uuid) RETURNS bigint
LANGUAGE sql STABLE
AS $$
    SELECT coalesce((t.limits::json ->> 'max_job_types')::bigint, {identity.model.JOB_TYPES_DEFAULT})
    FROM ingot.tenants AS t WHERE t.id = of_tenant
$$;

CREATE OR REPLACE FUNCTION ingot.types_left(of_tenant uuid) RETURNS bigint
LANGUAGE sql STABLE
AS $$
    SELECT ingot.types_max(of_tenant)
        - coalesce((SELECT c.types FROM ingot.type_counts AS c WHERE c.tenant = of_tenant), 0)
$$;

-- Refuse new jobs of these tenants and types that exceed the limit of types of a tenant. Returns whether any type is new, so
-- that another transaction that adds types may have been the obstacle.
CREATE OR REPLACE FUNCTION ingot.expect_types(of_tenants uuid[], of_types text[]) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    new record;
    has_new boolean := false;
BEGIN
    FOR new IN
        SELECT n.tenant, count(*) FILTER (WHERE NOT n.is_marked) AS types
        FROM ingot.new_types(
            array_fill(0, ARRAY[cardinality(of_tenants)]), of_tenants, of_types,
            ARRAY(SELECT generate_subscripts(of_tenants, 1))
        ) AS n
        GROUP BY n.tenant ORDER BY n.tenant
    LOOP
        has_new := true;
        IF new.types > ingot.types_left(new.tenant) THEN
            PERFORM ingot.refuse('IN074', format(
                'the tenant may have jobs of at most %s types', ingot.types_max(new.tenant)
            ));
        END IF;
    END LOOP;
    RETURN has_new;
END
$$;

-- Delete types that are marked as unused and still have no jobs. One process at a time marks or deletes types, so all marks
-- that it finds are older than its transaction ID.
CREATE OR REPLACE FUNCTION ingot.free_types(types_max integer) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    of_tenant uuid;
    unused_types text[];
    deleted integer;
BEGIN
    IF NOT EXISTS (SELECT FROM ingot.tenant_types AS u WHERE u.unused IS NOT NULL) THEN
        RETURN;
    END IF;
    PERFORM FROM ingot.migrations WHERE number = 1 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    -- A higher ID is from a database that was restored.
    UPDATE ingot.tenant_types AS u SET unused = pg_current_xact_id() WHERE u.ctid = ANY (ARRAY(
        SELECT u.ctid FROM ingot.tenant_types AS u
        WHERE u.unused IS NOT NULL AND (u.unused = '0' OR u.unused > pg_current_xact_id())
        LIMIT types_max FOR NO KEY UPDATE SKIP LOCKED
    ));
    FOR of_tenant IN
        SELECT DISTINCT n.tenant FROM (
            SELECT u.tenant FROM ingot.tenant_types AS u
            WHERE u.unused IS NOT NULL AND u.unused BETWEEN '1' AND pg_snapshot_xmin(pg_current_snapshot()) LIMIT types_max
        ) AS n
    LOOP
        CONTINUE WHEN NOT ingot.lock_types(of_tenant);
        unused_types := ARRAY(
            SELECT u.type FROM ingot.tenant_types AS u
            WHERE u.tenant = of_tenant AND u.unused IS NOT NULL
                AND u.unused BETWEEN '1' AND pg_snapshot_xmin(pg_current_snapshot())
            LIMIT types_max FOR UPDATE SKIP LOCKED
        );
        -- This statement sees the jobs of all transactions that held a lock on one of these rows.
        DELETE FROM ingot.tenant_types AS u WHERE u.tenant = of_tenant AND u.type = ANY (unused_types)
            AND NOT EXISTS (SELECT FROM ingot.jobs AS j WHERE j.tenant = u.tenant AND j.type = u.type);
        GET DIAGNOSTICS deleted = ROW_COUNT;
        UPDATE ingot.type_counts AS c SET types = c.types - deleted WHERE c.tenant = of_tenant;
        UPDATE ingot.tenant_types AS u SET unused = NULL WHERE u.tenant = of_tenant AND u.type = ANY (unused_types);
    END LOOP;
END
$$;

-- Lock the row of a tenant until the transaction ends. Returns false if another transaction has locked it.
CREATE OR REPLACE FUNCTION ingot.lock_types(of_tenant uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM FROM ingot.type_counts AS c WHERE c.tenant = of_tenant FOR UPDATE SKIP LOCKED;
    IF NOT FOUND AND NOT EXISTS (SELECT FROM ingot.type_counts AS c WHERE c.tenant = of_tenant) THEN
        -- The earlier version created the tenant while the migration ran.
        INSERT INTO ingot.type_counts (tenant, types) VALUES (of_tenant, 0) ON CONFLICT DO NOTHING;
    END IF;
    RETURN FOUND;
END
$$;
