-- Events that users publish. The log keeps such an event as its name and its data, which is JSON text, as a text.

-- Append events, those of one tenant in one batch, in the order given. One whose key stands for an event already is not
-- appended: the answer is that event, and whether what it says is the same. No two of one call share a key. One whose key an
-- application takes in a transaction of its own is left out of the answer.
CREATE OR REPLACE FUNCTION ingot.publish(
    of_tenants uuid[], names text[], contents text[], keys text[], digests bytea[], key_kept bigint
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
    here bigint;
    one uuid;
    begun boolean := pg_current_xact_id_if_assigned() IS NOT NULL;
    shut bigint[] := ARRAY(
        SELECT a.place FROM unnest(of_tenants, keys) WITH ORDINALITY AS a (tenant, key, place)
        WHERE a.key IS NOT NULL AND num_nonnulls(VARIADIC keys) <= ingot.gates_max()
            AND NOT pg_try_advisory_xact_lock_shared(ingot.gate('event', a.tenant, a.key))
    );
BEGIN
    FOR one IN SELECT DISTINCT t FROM unnest(of_tenants) AS u (t) LOOP
        PERFORM ingot.expect_tenant(one);
    END LOOP;
    here := ingot.position(pg_current_xact_id()) * 65536;
    -- Keys are taken in order, and one that somebody else is taking is waited for. Ours stand for no event yet.
    INSERT INTO ingot.event_keys AS k (tenant, key, digest, event, at)
    SELECT a.tenant, a.key, a.digest, -1, now
    FROM unnest(of_tenants, keys, digests) WITH ORDINALITY AS a (tenant, key, digest, place)
    WHERE a.key IS NOT NULL AND a.place <> ALL (shut) ORDER BY a.tenant, a.key COLLATE "C"
    ON CONFLICT (tenant, key) DO UPDATE SET digest = excluded.digest, event = -1, at = excluded.at
    WHERE k.at <= now - key_kept;
    RETURN QUERY
    WITH asked AS MATERIALIZED (
        SELECT a.*, k.event AS known, k.digest IS NOT DISTINCT FROM a.digest AS same
        FROM unnest(of_tenants, names, contents, keys, digests) WITH ORDINALITY AS a (tenant, name, data, key, digest, place)
        LEFT JOIN ingot.event_keys AS k ON k.tenant = a.tenant AND k.key = a.key
        WHERE a.place <> ALL (shut)
    ),
    fresh AS MATERIALIZED (
        SELECT a.*, here + CASE WHEN begun THEN ingot.places_taken(a.tenant) ELSE 0 END
            + row_number() OVER (PARTITION BY a.tenant ORDER BY a.place) - 1 AS event
        FROM asked AS a WHERE a.key IS NULL OR a.known = -1
    ),
    told AS (
        INSERT INTO ingot.events (tenant, position, at, entries)
        SELECT f.tenant, here / 65536, now,
            '[' || string_agg('[' || to_json(f.name) || ',' || to_json(f.data) || ']', ',' ORDER BY f.place) || ']'
        FROM fresh AS f GROUP BY f.tenant
        ON CONFLICT (tenant, position) DO UPDATE SET entries = ingot.then(events.entries, excluded.entries)
    ),
    noted AS (
        UPDATE ingot.event_keys AS k SET event = f.event FROM fresh AS f
        WHERE f.key IS NOT NULL AND k.tenant = f.tenant AND k.key = f.key
    )
    SELECT f.place, f.event, true, true FROM fresh AS f
    UNION ALL
    SELECT a.place, a.known, false, a.same FROM asked AS a WHERE a.key IS NOT NULL AND a.known <> -1;
END
$$;

-- Remove batches of events that are older than so long, oldest first, a bounded number; and keys that stand for nothing
-- any more. The newest batch of a tenant stays, and so does what a transaction that still runs could come before.
CREATE OR REPLACE FUNCTION ingot.forget_events(keep bigint, rows_max integer, key_kept bigint)
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
    settled bigint := ingot.position(pg_snapshot_xmin(pg_current_snapshot()));
    one uuid;
    newest bigint;
    last_gone bigint;
    gone bigint;
    removed bigint := 0;
    removed_keys bigint;
BEGIN
    -- A row that nobody else can lock; an advisory lock could be taken by any role.
    PERFORM FROM ingot.migrations WHERE number = 1 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 0::bigint, 0::bigint, false;
        RETURN;
    END IF;
    DELETE FROM ingot.event_keys AS k WHERE k.ctid = ANY (ARRAY(
        SELECT k.ctid FROM ingot.event_keys AS k WHERE k.at <= now - key_kept ORDER BY k.at LIMIT rows_max
        FOR UPDATE SKIP LOCKED
    ));
    GET DIAGNOSTICS removed_keys = ROW_COUNT;
    FOR one, newest IN
        SELECT t.id, n.position FROM ingot.tenants AS t
        CROSS JOIN LATERAL (SELECT e.position, e.at FROM ingot.events AS e WHERE e.tenant = t.id ORDER BY e.position LIMIT 1) AS o
        CROSS JOIN LATERAL (SELECT e.position FROM ingot.events AS e WHERE e.tenant = t.id ORDER BY e.position DESC LIMIT 1) AS n
        WHERE o.at <= now - keep AND o.position < n.position
    LOOP
        EXIT WHEN removed >= rows_max;
        SELECT max(o.position), count(*) INTO last_gone, gone FROM (
            SELECT e.position, bool_and(e.at <= now - keep) OVER (ORDER BY e.position) AS is_old FROM (
                SELECT e.position, e.at FROM ingot.events AS e
                WHERE e.tenant = one AND e.position < least(newest, settled) ORDER BY e.position LIMIT rows_max - removed
            ) AS e
        ) AS o WHERE o.is_old;
        CONTINUE WHEN gone = 0;
        INSERT INTO ingot.event_floors AS f (tenant, event)
        SELECT one, last_gone * 65536 - 1 + sum(
            CASE json_typeof(n.entry -> 1) WHEN 'array' THEN json_array_length(n.entry -> 1) ELSE 1 END
        )
        FROM ingot.events AS e CROSS JOIN LATERAL json_array_elements(e.entries::json) AS n (entry)
        WHERE e.tenant = one AND e.position = last_gone
        ON CONFLICT (tenant) DO UPDATE SET event = excluded.event;
        DELETE FROM ingot.events AS e WHERE e.tenant = one AND e.position <= last_gone;
        removed := removed + gone;
    END LOOP;
    RETURN QUERY SELECT removed, removed_keys, removed >= rows_max OR removed_keys >= rows_max;
END
$$;
