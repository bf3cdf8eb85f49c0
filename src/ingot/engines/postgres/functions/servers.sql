-- Why a server must not use the database with this object store: `used` if a running server uses another one, `filled` if there
-- are objects in another one. NULL if it may.
CREATE OR REPLACE FUNCTION ingot.object_store_conflict(of_store text, gone_after bigint) RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE
        WHEN o.id = of_store THEN NULL
        WHEN EXISTS (SELECT FROM ingot.servers AS s WHERE s.store = o.id AND s.seen_at > ingot.clock() - gone_after) THEN 'used'
        WHEN EXISTS (SELECT FROM ingot.blobs AS b WHERE b.place IS NOT NULL)
            OR EXISTS (SELECT FROM ingot.uploads AS u WHERE u.place IS NOT NULL) OR EXISTS (SELECT FROM ingot.trash) THEN 'filled'
    END
    FROM ingot.object_store AS o
$$;

-- Claim an object store for the database and register the server that uses it, unless there is a conflict. Return the recorded
-- object store, the name of the database, and whether a running server uses another object store. If only one server at a time
-- can use the object store, earlier servers have ended.
CREATE OR REPLACE FUNCTION ingot.register_server(
    of_server uuid, of_store text, is_exclusive boolean, gone_after bigint, new_grace bigint DEFAULT NULL
)
RETURNS TABLE (store_id text, database text, in_use boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '3s'
AS $$
DECLARE
    now bigint;
    conflict text;
BEGIN
    INSERT INTO ingot.object_store (id) VALUES (of_store) ON CONFLICT (only_row) DO NOTHING;
    PERFORM FROM ingot.object_store FOR UPDATE;
    conflict := ingot.object_store_conflict(of_store, gone_after);
    IF conflict IS NULL THEN
        now := ingot.clock();
        UPDATE ingot.object_store AS o SET id = of_store, grace = coalesce(new_grace, o.grace)
        WHERE o.id <> of_store OR o.grace IS DISTINCT FROM coalesce(new_grace, o.grace);
        UPDATE ingot.servers AS s SET seen_at = 0 WHERE s.store = of_store AND is_exclusive;
        INSERT INTO ingot.servers (id, store, since, seen_at) SELECT of_server, of_store, now, now WHERE of_server IS NOT NULL
        ON CONFLICT (id) DO UPDATE SET store = excluded.store, since = excluded.since, seen_at = excluded.seen_at;
    END IF;
    RETURN QUERY SELECT o.id, o.database, coalesce(conflict = 'used', false) FROM ingot.object_store AS o;
END
$$;

-- Renew the registration of a server, and end up to `uploads_max` uploads of servers that are gone. A server that has not
-- renewed its registration is gone only for a server that did so without a gap.
CREATE OR REPLACE FUNCTION ingot.renew_server(of_server uuid, of_store text, gone_after bigint, uploads_max integer)
RETURNS bigint
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
DECLARE
    now bigint := ingot.clock();
    steady_since bigint;
    gone uuid[];
    of_tenants uuid[];
    ids uuid[];
BEGIN
    IF EXISTS (SELECT FROM ingot.object_store AS o WHERE o.id <> of_store) THEN
        PERFORM ingot.refuse('IN051', '');
    END IF;
    INSERT INTO ingot.servers AS s (id, store, since, seen_at) VALUES (of_server, of_store, now, now)
    ON CONFLICT (id) DO UPDATE SET
        since = CASE WHEN s.seen_at < now - gone_after THEN now ELSE s.since END, seen_at = now
    RETURNING s.since INTO steady_since;
    gone := ARRAY(
        SELECT s.id FROM ingot.servers AS s
        WHERE s.seen_at = 0 OR (s.seen_at < now - gone_after AND steady_since <= now - gone_after)
    );
    SELECT array_agg(u.tenant), array_agg(u.id) INTO of_tenants, ids FROM (
        SELECT u.tenant, u.id FROM ingot.uploads AS u
        WHERE u.server = ANY (gone) AND u.server IS NOT NULL AND u.state IN ('open', 'verifying') LIMIT uploads_max
    ) AS u;
    IF ids IS NULL THEN
        DELETE FROM ingot.servers AS s WHERE s.id = ANY (gone);
        RETURN 0;
    END IF;
    PERFORM ingot.lock_usage(of_tenants);
    SELECT array_agg(u.tenant), array_agg(u.id) INTO of_tenants, ids FROM (
        SELECT u.tenant, u.id FROM unnest(of_tenants, ids) AS a (tenant, id)
        JOIN ingot.uploads AS u ON u.tenant = a.tenant AND u.id = a.id
        WHERE u.state IN ('open', 'verifying')
        ORDER BY u.tenant, u.id FOR UPDATE OF u SKIP LOCKED
    ) AS u;
    RETURN CASE WHEN ids IS NULL THEN 0 ELSE ingot.drop_uploads(of_tenants, ids, now) END;
END
$$;

-- Record that a server has ended.
CREATE OR REPLACE FUNCTION ingot.unregister_server(of_server uuid) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$ UPDATE ingot.servers AS s SET seen_at = 0 WHERE s.id = of_server $$;
