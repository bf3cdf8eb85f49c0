-- The store's time. Tests put their own in its place.
CREATE OR REPLACE FUNCTION ingot.clock() RETURNS bigint
LANGUAGE sql VOLATILE
AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- When this database came up; leases are not swept right after that.
CREATE OR REPLACE FUNCTION ingot.up_since() RETURNS bigint
LANGUAGE sql STABLE
AS $$ SELECT (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint $$;

-- Whether the rows live on the server that their transactions ran on: its name is the one that was kept, and no
-- transaction is named that it has not begun. Otherwise a migration lets them move in.
CREATE OR REPLACE FUNCTION ingot.at_home() RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT EXISTS (
        SELECT FROM ingot.home AS h JOIN pg_control_system() AS s ON s.system_identifier = h.server
        WHERE h.shift = ingot.shift()
    ) AND NOT EXISTS (
        SELECT FROM ingot.tenants AS t CROSS JOIN LATERAL (
            SELECT FROM ingot.events AS e
            WHERE e.tenant = t.id
                AND e.position >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint + ingot.shift()
            LIMIT 1
        ) AS e
    ) AND NOT EXISTS (
        SELECT FROM ingot.leases AS l WHERE l.changed_by >= pg_snapshot_xmax(pg_current_snapshot())
    )
$$;

-- The chance that jitter uses, from 0 up to 1.
CREATE OR REPLACE FUNCTION ingot.spread() RETURNS double precision
LANGUAGE sql VOLATILE
AS $$ SELECT random() $$;
