-- The schema itself: which steps of it were applied, and what is needed to apply more.

-- name: make_ledger
CREATE TABLE IF NOT EXISTS ingot.migrations (
    number integer PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now()
)

-- name: note_step
INSERT INTO ingot.migrations VALUES ($1, $2)

-- name: can_be_owner
-- From PostgreSQL 16 on, who made a role is its member and cannot become it.
SELECT pg_has_role(
    'ingot_owner', CASE WHEN current_setting('server_version_num')::integer < 160000 THEN 'MEMBER' ELSE 'SET' END
)

-- name: applied_digest
-- What was applied last.
SELECT obj_description('ingot'::regnamespace, 'pg_namespace')

-- name: drop_views
DROP VIEW IF EXISTS ingot.job_rows, ingot.attempts, ingot.definitions, ingot.pauses

-- name: drop_functions
-- What an older program had is not left beside the new; what was put there in this transaction stays.
DO $$
DECLARE
    known regprocedure;
BEGIN
    FOR known IN SELECT oid FROM pg_proc
    WHERE pronamespace = 'ingot'::regnamespace AND xmin <> pg_current_xact_id()::xid LOOP
        EXECUTE format('DROP FUNCTION %s', known);
    END LOOP;
END
$$

-- name: lock_home
LOCK TABLE ingot.events, ingot.leases IN EXCLUSIVE MODE

-- name: move_in
-- The rows are new, or came from a dump of another server: the event log goes on above what they brought along.
WITH old AS (DELETE FROM ingot.home RETURNING shift)
INSERT INTO ingot.home (server, shift) SELECT system_identifier, greatest(
    (SELECT max(shift) FROM old),
    (SELECT max(position) FROM ingot.events) + 1 - pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
    0
)
FROM pg_control_system()

-- name: forget_transactions
-- What rows that came from another server say of transactions means nothing here.
UPDATE ingot.leases SET changed_by = '3'
