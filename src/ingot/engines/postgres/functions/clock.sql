-- The store's time. Tests put their own in its place.
CREATE OR REPLACE FUNCTION ingot.clock() RETURNS bigint
LANGUAGE sql VOLATILE
AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- When this database came up; leases are not swept right after that.
CREATE OR REPLACE FUNCTION ingot.up_since() RETURNS bigint
LANGUAGE sql STABLE
AS $$ SELECT (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint $$;

-- The chance that jitter uses, from 0 up to 1.
CREATE OR REPLACE FUNCTION ingot.spread() RETURNS double precision
LANGUAGE sql VOLATILE
AS $$ SELECT random() $$;
