-- Invitations have to be accepted, sessions act in a tenant of their own, and people can leave tenants.
DROP VIEW owners;
DROP VIEW people;

-- `refused` is set when the provider identified a person and the sign-in was refused. `tenant` is the tenant that the
-- person chose last, and that of a session the one in which it acts.
ALTER TABLE users ADD COLUMN refused INTEGER NOT NULL DEFAULT 0 CHECK (refused IN (0, 1));
ALTER TABLE users ADD COLUMN tenant INTEGER;
ALTER TABLE sessions ADD COLUMN tenant INTEGER;
CREATE INDEX users_by_tenant ON users (tenant) WHERE tenant IS NOT NULL;
CREATE INDEX sessions_by_tenant ON sessions (tenant) WHERE tenant IS NOT NULL;

-- People who left a tenant. Roles by group no longer apply to them there.
CREATE TABLE departures (
    tenant          INTEGER NOT NULL,
    user            TEXT NOT NULL,
    left_at         INTEGER NOT NULL,
    PRIMARY KEY (tenant, user)
) STRICT, WITHOUT ROWID;

-- An invitation is for a verified email or for a person, and grants nothing before it is accepted.
CREATE TABLE pending_invitations (
    id              TEXT PRIMARY KEY,
    tenant          INTEGER NOT NULL,
    email           TEXT,
    user            TEXT,
    role            TEXT NOT NULL CHECK (role IN ('admin', 'member', 'viewer')),
    created_at      INTEGER NOT NULL,
    created_by      TEXT NOT NULL,
    expires_at      INTEGER NOT NULL,
    CHECK ((email IS NULL) <> (user IS NULL)),
    UNIQUE (tenant, email),
    UNIQUE (tenant, user)
) STRICT, WITHOUT ROWID;
INSERT INTO pending_invitations (id, tenant, email, role, created_at, created_by, expires_at)
SELECT id, tenant, email, role, created_at, created_by, (unixepoch() + 14 * 86400) * 1000000 FROM invitations;
DROP TABLE invitations;
ALTER TABLE pending_invitations RENAME TO invitations;
CREATE INDEX invitations_of_tenant ON invitations (tenant, id);
CREATE INDEX invitations_by_email ON invitations (email, id) WHERE email IS NOT NULL;
CREATE INDEX invitations_by_user ON invitations (user, id) WHERE user IS NOT NULL;

CREATE INDEX valid_tokens ON tokens (tenant) WHERE revoked_at IS NULL;

-- A person with roles in one tenant only has chosen it.
UPDATE users SET tenant = (
    SELECT min(r.tenant)
    FROM (
        SELECT m.tenant FROM members AS m WHERE m.user = users.id
        UNION
        SELECT g.tenant FROM user_groups AS u CROSS JOIN tenant_groups AS g ON g.name = u.name WHERE u.user = users.id
    ) AS r
    HAVING count(*) = 1
);
UPDATE sessions SET tenant = (SELECT u.tenant FROM users AS u WHERE u.id = sessions.user);

-- People as JSON.
CREATE VIEW people AS
SELECT u.id, u.email_lower, u.email_verified, u.enabled, json_object(
    'id', u.id, 'issuer', u.issuer, 'subject', u.subject, 'email', u.email,
    'email_verified', json(iif(u.email_verified, 'true', 'false')), 'name', u.name, 'picture', u.picture,
    'groups', json((SELECT json_group_array(g.name) FROM user_groups AS g WHERE g.user = u.id)),
    'enabled', json(iif(u.enabled, 'true', 'false')), 'refused', json(iif(u.refused, 'true', 'false')),
    'created_at', u.created_at, 'signed_in_at', u.signed_in_at) AS person
FROM users AS u;

-- People with their roles: their own, and those of their groups, except in tenants that they left. The highest role in a tenant counts, which is the alphabetically first.
CREATE VIEW owners AS
SELECT p.id, p.enabled, json_object('user', json(p.person), 'roles', json((
    SELECT json_group_array(json_object('tenant', t.id, 'slug', t.slug, 'role', r.role) ORDER BY t.slug)
    FROM (
        SELECT o.tenant, min(o.role) AS role
        FROM (
            SELECT m.tenant, m.role FROM members AS m WHERE m.user = p.id
            UNION ALL
            SELECT g.tenant, g.role FROM user_groups AS u CROSS JOIN tenant_groups AS g ON g.name = u.name
            WHERE u.user = p.id
                AND NOT EXISTS (SELECT 1 FROM departures AS d WHERE d.tenant = g.tenant AND d.user = p.id)
        ) AS o
        GROUP BY o.tenant
    ) AS r CROSS JOIN tenants AS t ON t.number = r.tenant
))) AS owner
FROM people AS p;
