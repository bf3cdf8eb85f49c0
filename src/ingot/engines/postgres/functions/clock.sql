-- The current time. Tests replace this function.
CREATE OR REPLACE FUNCTION ingot.clock() RETURNS bigint
LANGUAGE sql VOLATILE
AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- When this server started. Leases are not swept right after that.
CREATE OR REPLACE FUNCTION ingot.server_started_at() RETURNS bigint
LANGUAGE sql STABLE
AS $$ SELECT (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint $$;

-- Whether the rows were written by transactions of this server: its identifier is the recorded one, and no row names a
-- transaction that it has not started. If not, a migration adopts the rows (`set_home`).
CREATE OR REPLACE FUNCTION ingot.at_home() RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT EXISTS (
        SELECT FROM ingot.home AS h JOIN pg_control_system() AS s ON s.system_identifier = h.server
        WHERE h.shift = ingot.position_offset()
    ) AND NOT EXISTS (
        SELECT FROM ingot.tenants AS t CROSS JOIN LATERAL (
            SELECT FROM ingot.events AS e
            WHERE e.tenant = t.id
                AND e.position >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint + ingot.position_offset()
            LIMIT 1
        ) AS e
    ) AND NOT EXISTS (
        SELECT FROM ingot.leases AS l WHERE l.changed_by >= pg_snapshot_xmax(pg_current_snapshot())
    )
$$;

-- A random number for jitter, from 0 up to 1.
CREATE OR REPLACE FUNCTION ingot.random_fraction() RETURNS double precision
LANGUAGE sql VOLATILE
AS $$ SELECT random() $$;
