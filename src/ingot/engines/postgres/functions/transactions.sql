-- End the sessions of worker and application roles, in any database, whose transaction has a transaction ID and is older than
-- the limit. Readers stop below the oldest such transaction, so it holds back the events of all tenants. Sessions that
-- `ingot_owner` may not see or end are left out.
CREATE OR REPLACE FUNCTION ingot.end_long_transactions(worker_seconds double precision, app_seconds double precision)
RETURNS TABLE (role text, tenant text, seconds double precision)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    session_pid integer;
BEGIN
    FOR session_pid, role, tenant, seconds IN
        SELECT a.pid, r.role, r.tenant, extract(epoch FROM clock_timestamp() - a.xact_start)
        FROM ingot.limited_roles() AS r JOIN pg_stat_activity AS a ON a.usename = r.role
        WHERE a.backend_xid IS NOT NULL AND extract(epoch FROM clock_timestamp() - a.xact_start)
            > CASE WHEN r.is_worker THEN worker_seconds ELSE app_seconds END
    LOOP
        BEGIN
            IF pg_terminate_backend(session_pid) THEN
                RETURN NEXT;
            END IF;
        EXCEPTION WHEN insufficient_privilege THEN
            CONTINUE;
        END;
    END LOOP;
END
$$;

-- The roles whose transactions are limited, and whether each is that of workers. Worker roles of removed tenants, and of other
-- databases of the server, have no row here, but they can log in. Roles that may grant `ingot_worker` are those of operators.
CREATE OR REPLACE FUNCTION ingot.limited_roles() RETURNS TABLE (role name, tenant uuid, is_worker boolean)
LANGUAGE sql STABLE
AS $$
    SELECT w.role, w.tenant, true FROM ingot.worker_roles AS w
    UNION ALL
    SELECT a.role, a.tenant, false FROM ingot.app_roles AS a
    UNION ALL
    SELECT p.rolname, NULL, true FROM pg_auth_members AS m JOIN pg_roles AS p ON p.oid = m.member
    WHERE m.roleid = to_regrole('ingot_worker') AND NOT m.admin_option
        AND NOT EXISTS (SELECT FROM ingot.worker_roles AS w WHERE w.role = p.rolname)
$$;

-- The roles of workers and applications whose long transactions `end_long_transactions` cannot end, whether any role can
-- prepare transactions, which have no session, and the age of the oldest transaction that holds back events, if visible.
CREATE OR REPLACE FUNCTION ingot.describe_transactions()
RETURNS TABLE (unlimited_roles text[], can_prepare boolean, oldest_seconds double precision)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY
    SELECT ARRAY(
        SELECT r.role::text FROM ingot.limited_roles() AS r JOIN pg_roles AS p ON p.rolname = r.role
        WHERE NOT pg_has_role(p.oid, 'USAGE')
            AND NOT (pg_has_role('pg_signal_backend', 'USAGE') AND pg_has_role('pg_read_all_stats', 'USAGE'))
        ORDER BY r.role
    ), current_setting('max_prepared_transactions')::integer > 0, (
        SELECT extract(epoch FROM clock_timestamp() - min(t.began))::double precision FROM (
            SELECT a.xact_start FROM pg_stat_activity AS a WHERE a.backend_xid IS NOT NULL
            UNION ALL
            SELECT p.prepared FROM pg_prepared_xacts AS p
        ) AS t (began)
    );
END
$$;
