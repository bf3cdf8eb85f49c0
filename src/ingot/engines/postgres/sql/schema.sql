-- The schema itself: the migrations that were applied, and statements for applying more.

-- name: create_migrations_table
CREATE TABLE IF NOT EXISTS ingot.migrations (
    number integer PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now()
)

-- name: record_migration
INSERT INTO ingot.migrations VALUES ($1, $2)

-- name: can_be_owner
-- Since PostgreSQL 16, the creator of a role is a member of it but cannot SET ROLE to it.
SELECT pg_has_role(
    'ingot_owner', CASE WHEN current_setting('server_version_num')::integer < 160000 THEN 'MEMBER' ELSE 'SET' END
)

-- name: applied_revision
-- The revision that was applied last. Every role can read it, also while a migration holds its locks.
SELECT obj_description(to_regnamespace('ingot'), 'pg_namespace')

-- name: about_database
-- The version of the server, the number of the newest migration, and the size of the database in bytes.
SELECT split_part(current_setting('server_version'), ' ', 1) AS version, (SELECT max(m.number) FROM ingot.migrations AS m) AS schema,
    pg_database_size(current_database()) AS size

-- name: drop_views
DROP VIEW IF EXISTS ingot.job_rows, ingot.attempts, ingot.definitions, ingot.pauses

-- name: drop_stale_functions
-- Drop the functions that this transaction has not created or replaced: they belong to another version.
DO $$
DECLARE
    stale regprocedure;
BEGIN
    FOR stale IN SELECT oid FROM pg_proc
    WHERE pronamespace = 'ingot'::regnamespace AND xmin <> pg_current_xact_id()::xid LOOP
        EXECUTE format('DROP FUNCTION %s', stale);
    END LOOP;
END
$$

-- name: lock_home
LOCK TABLE ingot.events, ingot.leases IN EXCLUSIVE MODE

-- name: set_home
-- The rows are new, or come from a dump of another server: event positions continue above the restored ones.
WITH old AS (DELETE FROM ingot.home RETURNING shift)
INSERT INTO ingot.home (server, shift) SELECT system_identifier, greatest(
    (SELECT max(shift) FROM old),
    (SELECT max(position) FROM ingot.events) + 1 - pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
    0
)
FROM pg_control_system()

-- name: reset_lease_transactions
-- Transaction IDs in rows that were restored from another server mean nothing here.
UPDATE ingot.leases SET changed_by = '3'
