-- People, their groups, memberships, invitations, logins and sessions.

-- name: put_user
-- Store a person who signs in. The values of their provider replace the stored ones.
INSERT INTO users
    (id, issuer, subject, email, email_lower, email_verified, name, picture, enabled, created_at, signed_in_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 1, ?9, ?9)
ON CONFLICT (issuer, subject) DO UPDATE SET
    email = excluded.email, email_lower = excluded.email_lower, email_verified = excluded.email_verified,
    name = excluded.name, picture = excluded.picture, signed_in_at = excluded.signed_in_at

-- name: user_by_id
SELECT CAST(person AS BLOB) FROM people WHERE id = ?

-- name: user_by_subject
-- The person with this subject of a provider, and whether they may sign in.
SELECT id, enabled FROM users WHERE issuer = ?1 AND subject = ?2

-- name: user_with_roles_by_id
SELECT CAST(owner AS BLOB) FROM owners WHERE id = ?

-- name: page_of_users
-- People below an ID, newest first.
SELECT CAST(json_group_array(json(p.person)) AS BLOB)
FROM (
    SELECT u.id FROM users AS u WHERE u.id < ?1 ORDER BY u.id DESC LIMIT ?2
) AS o CROSS JOIN people AS p ON p.id = o.id

-- name: page_of_users_by_email
-- People below an ID, newest first.
SELECT CAST(json_group_array(json(p.person)) AS BLOB)
FROM (
    SELECT u.id FROM users AS u WHERE u.email_lower = ?1 AND u.id < ?2 ORDER BY u.id DESC LIMIT ?3
) AS o CROSS JOIN people AS p ON p.id = o.id

-- name: set_user_enabled
UPDATE users SET enabled = ?2 WHERE id = ?1

-- name: is_user_enabled
SELECT enabled FROM users WHERE id = ?

-- name: insert_user_groups
-- ?2 is a JSON array of group names.
INSERT INTO user_groups (user, name) SELECT DISTINCT ?1, g.value FROM json_each(?2) AS g

-- name: delete_user_groups
DELETE FROM user_groups WHERE user = ?

-- name: put_member
INSERT INTO members (tenant, user, role, created_at, created_by) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (tenant, user) DO UPDATE SET role = excluded.role

-- name: members_by_id
-- People and invitations with one of these IDs (a JSON array) and a role in the tenant, by ID. The highest role counts,
-- which is the alphabetically first. A person's own role comes before those of groups.
SELECT CAST(json_group_array(json(listed.member)) AS BLOB)
FROM (
    SELECT json_object(
        'id', u.id, 'role', min(s.role), 'sources',
        json_group_array(json_object('role', s.role, 'group', s.name) ORDER BY s.name),
        'user', u.id, 'email', u.email, 'name', u.name, 'picture', u.picture) AS member, u.id AS id
    FROM (
        SELECT m.user, m.role, NULL AS name
        FROM json_each(?2) AS item CROSS JOIN members AS m ON m.tenant = ?1 AND m.user = item.value
        UNION ALL
        SELECT g.user, t.role, t.name
        FROM json_each(?2) AS item
            CROSS JOIN tenant_groups AS t ON t.tenant = ?1
            CROSS JOIN user_groups AS g ON g.user = item.value AND g.name = t.name
    ) AS s CROSS JOIN users AS u ON u.id = s.user
    GROUP BY u.id
    UNION ALL
    SELECT json_object(
        'id', i.id, 'role', i.role, 'sources', json_array(json_object('role', i.role)), 'email', i.email,
        'invited', json('true')), i.id
    FROM json_each(?2) AS item CROSS JOIN invitations AS i ON i.id = item.value AND i.tenant = ?1
    ORDER BY 2
) AS listed

-- name: page_of_members
-- The IDs of people and invitations with a role in a tenant, after an ID, in order. From each group, at most one page
-- of rows is read.
SELECT CAST(json_group_array(o.id) AS BLOB)
FROM (
    SELECT m.id FROM (SELECT user AS id FROM members WHERE tenant = ?1 AND user > ?2 ORDER BY user LIMIT ?3) AS m
    UNION
    SELECT i.id FROM (SELECT id FROM invitations WHERE tenant = ?1 AND id > ?2 ORDER BY id LIMIT ?3) AS i
    UNION
    SELECT g.value
    FROM tenant_groups AS t CROSS JOIN json_each((
        SELECT json_group_array(f.user)
        FROM (SELECT user FROM user_groups WHERE name = t.name AND user > ?2 ORDER BY user LIMIT ?3) AS f
    )) AS g
    WHERE t.tenant = ?1
    ORDER BY 1 LIMIT ?3
) AS o

-- name: delete_member
DELETE FROM members WHERE tenant = ?1 AND user = ?2

-- name: remove_members
DELETE FROM members WHERE tenant = ?1

-- name: put_invitation
-- Returns the ID of the invitation, which is the old one if the invitation existed.
INSERT INTO invitations (id, tenant, email, role, created_at, created_by) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, email) DO UPDATE SET role = excluded.role
RETURNING id

-- name: invitation_by_email
SELECT id FROM invitations WHERE tenant = ?1 AND email = ?2

-- name: accept_invitations
-- Turn the invitations to an email into memberships. Of two roles in a tenant the higher one counts, which is the
-- alphabetically first.
INSERT INTO members (tenant, user, role, created_at, created_by)
SELECT i.tenant, ?1, i.role, ?3, i.created_by FROM invitations AS i WHERE i.email = ?2
ON CONFLICT (tenant, user) DO UPDATE SET role = min(role, excluded.role)

-- name: delete_invitation
DELETE FROM invitations WHERE id = ?

-- name: delete_invitation_of_user
-- Delete the invitation to a person's verified email.
DELETE FROM invitations
WHERE tenant = ?1 AND email = (SELECT u.email_lower FROM users AS u WHERE u.id = ?2 AND u.email_verified = 1)

-- name: delete_invitations_by_email
DELETE FROM invitations WHERE email = ?

-- name: remove_invitations
DELETE FROM invitations WHERE tenant = ?1

-- name: insert_login
INSERT INTO logins (digest, next, link, expires_at) VALUES (?, ?, ?, ?)

-- name: consume_login
DELETE FROM logins WHERE digest = ?1 AND link = ?2 AND expires_at > ?3 RETURNING next

-- name: delete_expired_logins
DELETE FROM logins
WHERE digest IN (SELECT e.digest FROM logins AS e WHERE e.expires_at <= ?1 ORDER BY e.expires_at LIMIT ?2)

-- name: insert_session
INSERT INTO sessions (id, digest, user, created_at, expires_at, last_used_at, address, agent)
VALUES (?1, ?2, ?3, ?4, ?5, ?4, ?6, ?7)

-- name: session_by_id
-- The ID and the email of the person whose session this is.
SELECT CAST(json_object('user', s.user, 'email', u.email) AS BLOB)
FROM sessions AS s CROSS JOIN users AS u ON u.id = s.user WHERE s.id = ?

-- name: session_by_digest
-- An unexpired session of an enabled person.
SELECT CAST(json_object('session', json_object(
    'id', s.id, 'user', s.user, 'created_at', s.created_at, 'expires_at', s.expires_at,
    'last_used_at', s.last_used_at, 'address', s.address, 'agent', s.agent), 'owner', json(w.owner)) AS BLOB)
FROM sessions AS s CROSS JOIN owners AS w ON w.id = s.user
WHERE s.digest = ?1 AND s.expires_at > ?2 AND w.enabled = 1

-- name: sessions_of_user
-- Unexpired sessions, newest first.
SELECT CAST(json_group_array(json_object(
    'id', s.id, 'user', s.user, 'created_at', s.created_at, 'expires_at', s.expires_at,
    'last_used_at', s.last_used_at, 'address', s.address, 'agent', s.agent)) AS BLOB)
FROM (
    SELECT * FROM sessions AS e WHERE e.user = ?1 AND e.expires_at > ?2 ORDER BY e.id DESC LIMIT ?3
) AS s

-- name: record_session_use
UPDATE sessions SET last_used_at = ?2 WHERE id = ?1 AND last_used_at < ?2

-- name: delete_session
DELETE FROM sessions WHERE id = ?

-- name: delete_session_by_digest
DELETE FROM sessions WHERE digest = ?

-- name: delete_sessions_of_user
DELETE FROM sessions WHERE user = ?

-- name: delete_expired_sessions
DELETE FROM sessions
WHERE id IN (SELECT e.id FROM sessions AS e WHERE e.expires_at <= ?1 ORDER BY e.expires_at LIMIT ?2)
