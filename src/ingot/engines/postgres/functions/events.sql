-- Events that users publish. The log stores such an event as its name and the JSON text of its data.

-- Append events, in order, those of one tenant in one batch. An event whose dedupe key was used is not appended: the result
-- is the existing event, and whether name and data are the same. No two events of a call share a key. An event is left out
-- of the result if an open transaction of an application holds the gate of its key.
CREATE OR REPLACE FUNCTION ingot.publish(
    of_tenants uuid[], names text[], contents text[], keys text[], digests bytea[], key_lifetime bigint
) RETURNS TABLE (place bigint, event bigint, created boolean, same boolean)
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
    first_event bigint;
    tenant_id uuid;
    xact_started boolean := pg_current_xact_id_if_assigned() IS NOT NULL;
    locked_places bigint[] := ARRAY(
        SELECT a.place FROM unnest(of_tenants, keys) WITH ORDINALITY AS a (tenant, key, place)
        WHERE a.key IS NOT NULL AND num_nonnulls(VARIADIC keys) <= ingot.gates_max()
            AND NOT pg_try_advisory_xact_lock_shared(ingot.gate('event', a.tenant, a.key))
    );
BEGIN
    FOR tenant_id IN SELECT DISTINCT t FROM unnest(of_tenants) AS u (t) LOOP
        PERFORM ingot.expect_tenant(tenant_id);
    END LOOP;
    first_event := ingot.event_position(pg_current_xact_id()) * 65536;
    -- Keys are inserted in order; a key that another transaction is inserting is waited for. New keys have no event (-1) yet.
    INSERT INTO ingot.event_keys AS k (tenant, key, digest, event, at)
    SELECT a.tenant, a.key, a.digest, -1, now
    FROM unnest(of_tenants, keys, digests) WITH ORDINALITY AS a (tenant, key, digest, place)
    WHERE a.key IS NOT NULL AND a.place <> ALL (locked_places) ORDER BY a.tenant, a.key COLLATE "C"
    ON CONFLICT (tenant, key) DO UPDATE SET digest = excluded.digest, event = -1, at = excluded.at
    WHERE k.at <= now - key_lifetime;
    RETURN QUERY
    WITH input AS MATERIALIZED (
        SELECT a.*, k.event AS existing_event, k.digest IS NOT DISTINCT FROM a.digest AS same
        FROM unnest(of_tenants, names, contents, keys, digests) WITH ORDINALITY AS a (tenant, name, data, key, digest, place)
        LEFT JOIN ingot.event_keys AS k ON k.tenant = a.tenant AND k.key = a.key
        WHERE a.place <> ALL (locked_places)
    ),
    new_events AS MATERIALIZED (
        SELECT a.*, first_event + CASE WHEN xact_started THEN ingot.events_in_transaction(a.tenant) ELSE 0 END
            + row_number() OVER (PARTITION BY a.tenant ORDER BY a.place) - 1 AS event
        FROM input AS a WHERE a.key IS NULL OR a.existing_event = -1
    ),
    added_events AS (
        INSERT INTO ingot.events (tenant, position, at, entries)
        SELECT f.tenant, first_event / 65536, now,
            '[' || string_agg('[' || to_json(f.name) || ',' || to_json(f.data) || ']', ',' ORDER BY f.place) || ']'
        FROM new_events AS f GROUP BY f.tenant
        ON CONFLICT (tenant, position) DO UPDATE SET entries = ingot.join_entries(events.entries, excluded.entries)
    ),
    updated_keys AS (
        UPDATE ingot.event_keys AS k SET event = f.event FROM new_events AS f
        WHERE f.key IS NOT NULL AND k.tenant = f.tenant AND k.key = f.key
    )
    SELECT f.place, f.event, true, true FROM new_events AS f
    UNION ALL
    SELECT a.place, a.existing_event, false, a.same FROM input AS a WHERE a.key IS NOT NULL AND a.existing_event <> -1;
END
$$;

-- Delete up to `rows_max` batches of events older than `max_age`, oldest first, and dedupe keys that have expired. The newest
-- batch of a tenant stays, and so do batches that a running transaction could still write before.
CREATE OR REPLACE FUNCTION ingot.delete_old_events(max_age bigint, rows_max integer, key_lifetime bigint)
RETURNS TABLE (batches bigint, keys bigint, more boolean)
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
    settled_position bigint := ingot.event_position(pg_snapshot_xmin(pg_current_snapshot()));
    tenant_id uuid;
    newest_position bigint;
    last_deleted bigint;
    batches_deleted bigint;
    total_deleted bigint := 0;
    keys_deleted bigint;
BEGIN
    -- Lock a row instead of taking an advisory lock, which any role could take.
    PERFORM FROM ingot.migrations WHERE number = 1 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 0::bigint, 0::bigint, false;
        RETURN;
    END IF;
    DELETE FROM ingot.event_keys AS k WHERE k.ctid = ANY (ARRAY(
        SELECT k.ctid FROM ingot.event_keys AS k WHERE k.at <= now - key_lifetime ORDER BY k.at LIMIT rows_max
        FOR UPDATE SKIP LOCKED
    ));
    GET DIAGNOSTICS keys_deleted = ROW_COUNT;
    FOR tenant_id, newest_position IN
        SELECT t.id, n.position FROM ingot.tenants AS t
        CROSS JOIN LATERAL (SELECT e.position, e.at FROM ingot.events AS e WHERE e.tenant = t.id ORDER BY e.position LIMIT 1) AS o
        CROSS JOIN LATERAL (SELECT e.position FROM ingot.events AS e WHERE e.tenant = t.id ORDER BY e.position DESC LIMIT 1) AS n
        WHERE o.at <= now - max_age AND o.position < n.position
    LOOP
        EXIT WHEN total_deleted >= rows_max;
        SELECT max(o.position), count(*) INTO last_deleted, batches_deleted FROM (
            SELECT e.position, bool_and(e.at <= now - max_age) OVER (ORDER BY e.position) AS is_old FROM (
                SELECT e.position, e.at FROM ingot.events AS e
                WHERE e.tenant = tenant_id AND e.position < least(newest_position, settled_position) ORDER BY e.position
                    LIMIT rows_max - total_deleted
            ) AS e
        ) AS o WHERE o.is_old;
        CONTINUE WHEN batches_deleted = 0;
        INSERT INTO ingot.event_floors AS f (tenant, event)
        SELECT tenant_id, last_deleted * 65536 - 1 + sum(
            CASE json_typeof(n.entry -> 1) WHEN 'array' THEN json_array_length(n.entry -> 1) ELSE 1 END
        )
        FROM ingot.events AS e CROSS JOIN LATERAL json_array_elements(e.entries::json) AS n (entry)
        WHERE e.tenant = tenant_id AND e.position = last_deleted
        ON CONFLICT (tenant) DO UPDATE SET event = excluded.event;
        DELETE FROM ingot.events AS e WHERE e.tenant = tenant_id AND e.position <= last_deleted;
        total_deleted := total_deleted + batches_deleted;
    END LOOP;
    RETURN QUERY SELECT total_deleted, keys_deleted, total_deleted >= rows_max OR keys_deleted >= rows_max;
END
$$;
