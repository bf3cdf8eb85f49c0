-- People who have signed in, their sessions, and roles in tenants.
-- Emails are compared in lower case (`email_lower`).
CREATE TABLE users (
    id              TEXT PRIMARY KEY,
    issuer          TEXT NOT NULL,
    subject         TEXT NOT NULL,
    email           TEXT,
    email_lower     TEXT,
    email_verified  INTEGER NOT NULL CHECK (email_verified IN (0, 1)),
    name            TEXT,
    picture         TEXT,
    enabled         INTEGER NOT NULL CHECK (enabled IN (0, 1)),
    created_at      INTEGER NOT NULL,
    signed_in_at    INTEGER NOT NULL,
    UNIQUE (issuer, subject)
) STRICT, WITHOUT ROWID;
CREATE INDEX users_by_email ON users (email_lower, id);

-- The groups of each person at their last sign-in, and the groups that have a role in a tenant.
CREATE TABLE user_groups (
    user            TEXT NOT NULL,
    name            TEXT NOT NULL,
    PRIMARY KEY (user, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX user_groups_by_name ON user_groups (name, user);

CREATE TABLE tenant_groups (
    tenant          INTEGER NOT NULL,
    name            TEXT NOT NULL,
    role            TEXT NOT NULL CHECK (role IN ('admin', 'member', 'viewer')),
    PRIMARY KEY (tenant, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX tenant_groups_by_name ON tenant_groups (name, tenant);

-- Roles of people, and roles of those who will sign in with a given email, which is in lower case.
CREATE TABLE members (
    tenant          INTEGER NOT NULL,
    user            TEXT NOT NULL,
    role            TEXT NOT NULL CHECK (role IN ('admin', 'member', 'viewer')),
    created_at      INTEGER NOT NULL,
    created_by      TEXT NOT NULL,
    PRIMARY KEY (tenant, user)
) STRICT, WITHOUT ROWID;
CREATE INDEX members_of_user ON members (user, tenant);

CREATE TABLE invitations (
    id              TEXT PRIMARY KEY,
    tenant          INTEGER NOT NULL,
    email           TEXT NOT NULL,
    role            TEXT NOT NULL CHECK (role IN ('admin', 'member', 'viewer')),
    created_at      INTEGER NOT NULL,
    created_by      TEXT NOT NULL,
    UNIQUE (tenant, email)
) STRICT, WITHOUT ROWID;
CREATE INDEX invitations_of_tenant ON invitations (tenant, id);
CREATE INDEX invitations_by_email ON invitations (email, tenant);

-- Browsers in which a person is signed in. Only digests of their secrets are stored.
CREATE TABLE sessions (
    id              TEXT PRIMARY KEY,
    digest          BLOB NOT NULL UNIQUE,
    user            TEXT NOT NULL,
    created_at      INTEGER NOT NULL,
    expires_at      INTEGER NOT NULL,
    last_used_at    INTEGER NOT NULL,
    address         TEXT,
    agent           TEXT
) STRICT, WITHOUT ROWID;
CREATE INDEX sessions_of_user ON sessions (user, id);
CREATE INDEX sessions_by_end ON sessions (expires_at);

-- Sign-ins that have begun and are not complete.
CREATE TABLE logins (
    digest          BLOB PRIMARY KEY,
    next            TEXT NOT NULL,
    link            INTEGER NOT NULL CHECK (link IN (0, 1)),
    expires_at      INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX logins_by_end ON logins (expires_at);

-- The person that a token belongs to. The token is revoked when the person is disabled.
ALTER TABLE tokens ADD COLUMN user TEXT;
CREATE INDEX tokens_of_user ON tokens (user, id) WHERE user IS NOT NULL;

-- People as JSON.
CREATE VIEW people AS
SELECT u.id, u.email_lower, u.email_verified, u.enabled, json_object(
    'id', u.id, 'issuer', u.issuer, 'subject', u.subject, 'email', u.email,
    'email_verified', json(iif(u.email_verified, 'true', 'false')), 'name', u.name, 'picture', u.picture,
    'groups', json((SELECT json_group_array(g.name) FROM user_groups AS g WHERE g.user = u.id)),
    'enabled', json(iif(u.enabled, 'true', 'false')), 'created_at', u.created_at, 'signed_in_at', u.signed_in_at) AS person
FROM users AS u;

-- People with their roles: their own, those of their groups, and those of invitations to their verified email.
-- The highest role in a tenant counts, which is the alphabetically first.
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
            UNION ALL
            SELECT i.tenant, i.role FROM invitations AS i WHERE p.email_verified = 1 AND i.email = p.email_lower
        ) AS o
        GROUP BY o.tenant
    ) AS r CROSS JOIN tenants AS t ON t.number = r.tenant
))) AS owner
FROM people AS p;
