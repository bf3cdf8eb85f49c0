-- Roles, and the facts that a role can read about itself and its database.

-- name: about_server
-- The role of a server, the settings that it depends on, and whether it bypasses row-level security.
SELECT current_user, current_setting('synchronous_commit'), current_setting('server_encoding'),
    (SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user)

-- name: about_worker
-- The role of a worker, its setting, and facts that every role can read, whatever its privileges.
SELECT session_user::text, current_setting('synchronous_commit'),
    EXISTS (SELECT FROM pg_namespace WHERE nspname = 'ingot'),
    EXISTS (
        SELECT FROM pg_auth_members AS m JOIN pg_roles AS w ON w.oid = m.roleid JOIN pg_roles AS u ON u.oid = m.member
        WHERE w.rolname = 'ingot_worker' AND u.rolname = session_user
    ),
    EXISTS (
        SELECT FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
        WHERE n.nspname = 'ingot' AND p.proname = 'worker_hello'
    )

-- name: is_worker_role
-- Whether a role was created for a worker; no row if the role does not exist.
SELECT EXISTS (
    SELECT FROM pg_auth_members AS m WHERE m.member = r.oid AND m.roleid = 'ingot_worker'::regrole
) AND NOT r.rolsuper FROM pg_roles AS r WHERE r.rolname = $1

-- name: lock_tenant
-- The ID of a tenant, by ID or slug. It cannot be removed until the transaction ends.
SELECT id::text FROM ingot.tenants WHERE CASE WHEN $2::boolean THEN id::text ELSE slug END = $1 FOR KEY SHARE

-- name: insert_app_role
-- Grant a role access to a tenant, and return the tenant that it has access to.
INSERT INTO ingot.app_roles (role, tenant) VALUES ($1, $2) ON CONFLICT (role) DO UPDATE SET role = excluded.role
RETURNING tenant::text

-- name: delete_app_role
DELETE FROM ingot.app_roles WHERE role = $1

-- name: insert_worker_role
INSERT INTO ingot.worker_roles (role, tenant) VALUES ($1, $2) ON CONFLICT (role) DO NOTHING
