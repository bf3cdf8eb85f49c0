-- People, their groups, memberships, invitations, logins and sessions.

-- name: put_user
-- Store a person who signs in. The values of their provider replace the stored ones.
INSERT INTO users
    (id, issuer, subject, email, email_lower, email_verified, name, picture, enabled, created_at, signed_in_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 1, ?9, ?9)
ON CONFLICT (issuer, subject) DO UPDATE SET
    email = excluded.email, email_lower = excluded.email_lower, email_verified = excluded.email_verified,
    name = excluded.name, picture = excluded.picture, signed_in_at = excluded.signed_in_at, refused = 0

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

-- name: set_user_refused
UPDATE users SET refused = 1 WHERE id = ?

-- name: choose_tenant_of_user
UPDATE users SET tenant = ?2 WHERE id = ?1

-- name: choose_tenant_of_session
UPDATE sessions SET tenant = ?2 WHERE id = ?1 AND user = ?3

-- name: forget_tenant_of_users
UPDATE users SET tenant = NULL WHERE tenant = ?1 AND tenant IS NOT NULL

-- name: forget_tenant_of_sessions
UPDATE sessions SET tenant = NULL WHERE tenant = ?1 AND tenant IS NOT NULL

-- name: chosen_tenant
-- The tenant that a person chose last, or the only one in which they have a role.
SELECT coalesce(u.tenant, (
    SELECT min(o.tenant)
    FROM (
        SELECT m.tenant FROM members AS m WHERE m.user = ?1
        UNION
        SELECT g.tenant FROM user_groups AS n CROSS JOIN tenant_groups AS g ON g.name = n.name
        WHERE n.user = ?1 AND NOT EXISTS (SELECT 1 FROM departures AS d WHERE d.tenant = g.tenant AND d.user = ?1)
    ) AS o
    HAVING count(*) = 1
))
FROM users AS u WHERE u.id = ?1

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

-- name: own_role
SELECT role FROM members WHERE tenant = ?1 AND user = ?2

-- name: members_by_id
-- People and unexpired invitations with one of these IDs (a JSON array) in the tenant, by ID. The highest role counts,
-- which is the alphabetically first. A person's own role comes before those of groups.
SELECT CAST(json_group_array(json(listed.member)) AS BLOB)
FROM (
    SELECT json_object(
        'id', u.id, 'role', min(s.role), 'sources',
        json_group_array(json_object('role', s.role, 'group', s.name) ORDER BY s.name),
        'user', u.id, 'email', u.email, 'name', u.name, 'picture', u.picture, 'invited', json('false'),
        'expires_at', NULL) AS member, u.id AS id
    FROM (
        SELECT m.user, m.role, NULL AS name
        FROM json_each(?2) AS item CROSS JOIN members AS m ON m.tenant = ?1 AND m.user = item.value
        UNION ALL
        SELECT g.user, t.role, t.name
        FROM json_each(?2) AS item
            CROSS JOIN tenant_groups AS t ON t.tenant = ?1
            CROSS JOIN user_groups AS g ON g.user = item.value AND g.name = t.name
        WHERE NOT EXISTS (SELECT 1 FROM departures AS d WHERE d.tenant = ?1 AND d.user = item.value)
    ) AS s CROSS JOIN users AS u ON u.id = s.user
    GROUP BY u.id
    UNION ALL
    SELECT json_object(
        'id', i.id, 'role', i.role, 'sources', json_array(json_object('role', i.role)), 'user', i.user, 'email', i.email,
        'name', NULL, 'picture', NULL, 'invited', json('true'), 'expires_at', i.expires_at), i.id
    FROM json_each(?2) AS item CROSS JOIN invitations AS i ON i.id = item.value AND i.tenant = ?1
    WHERE i.expires_at > ?3
    ORDER BY 2
) AS listed

-- name: page_of_members
-- The IDs of people and unexpired invitations with a role in a tenant, after an ID, in order. From each group, at most
-- one page of rows is read.
SELECT CAST(json_group_array(o.id) AS BLOB)
FROM (
    SELECT m.id FROM (SELECT user AS id FROM members WHERE tenant = ?1 AND user > ?2 ORDER BY user LIMIT ?3) AS m
    UNION
    SELECT i.id FROM (
        SELECT id FROM invitations WHERE tenant = ?1 AND id > ?2 AND expires_at > ?4 ORDER BY id LIMIT ?3
    ) AS i
    UNION
    SELECT g.value
    FROM tenant_groups AS t CROSS JOIN json_each((
        SELECT json_group_array(f.user)
        FROM (
            SELECT user FROM user_groups AS n WHERE name = t.name AND user > ?2
                AND NOT EXISTS (SELECT 1 FROM departures AS d WHERE d.tenant = ?1 AND d.user = n.user)
            ORDER BY user LIMIT ?3
        ) AS f
    )) AS g
    WHERE t.tenant = ?1
    ORDER BY 1 LIMIT ?3
) AS o

-- name: delete_member
DELETE FROM members WHERE tenant = ?1 AND user = ?2

-- name: remove_members
DELETE FROM members WHERE tenant = ?1

-- name: insert_departure
INSERT INTO departures (tenant, user, left_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING

-- name: delete_departure
DELETE FROM departures WHERE tenant = ?1 AND user = ?2

-- name: remove_departures
DELETE FROM departures WHERE tenant = ?1

-- name: insert_invitation
INSERT INTO invitations (id, tenant, email, user, role, created_at, created_by, expires_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)

-- name: change_invitation
UPDATE invitations SET role = ?2, expires_at = ?3 WHERE id = ?1

-- name: set_role_of_invitation
UPDATE invitations SET role = ?2 WHERE id = ?1

-- name: find_invitation
-- The ID of the invitation of an email or of a person to a tenant.
SELECT id FROM invitations WHERE tenant = ?1 AND (email = ?2 AND ?2 IS NOT NULL OR user = ?3 AND ?3 IS NOT NULL)

-- name: count_invitations
SELECT count(*) FROM invitations WHERE tenant = ?

-- name: delete_expired_invitations
DELETE FROM invitations WHERE tenant = ?1 AND expires_at <= ?2

-- name: invitations_of_user
-- Unexpired invitations of a person, or of their email if it is verified, by ID.
SELECT CAST(json_group_array(json_object(
    'id', i.id, 'tenant', t.id, 'slug', t.slug, 'role', i.role, 'created_at', i.created_at, 'expires_at', i.expires_at)
    ORDER BY i.id) AS BLOB)
FROM (
    SELECT * FROM (
        SELECT * FROM (SELECT * FROM invitations AS a WHERE a.user = ?1 AND a.user IS NOT NULL AND a.expires_at > ?2
            ORDER BY a.id LIMIT ?3)
        UNION ALL
        SELECT * FROM (SELECT b.* FROM users AS u CROSS JOIN invitations AS b
            WHERE u.id = ?1 AND u.email_verified = 1 AND b.email = u.email_lower AND b.email IS NOT NULL AND b.expires_at > ?2
            ORDER BY b.id LIMIT ?3)
    ) ORDER BY id LIMIT ?3
) AS i CROSS JOIN tenants AS t ON t.number = i.tenant

-- name: invitation_for_user
-- The tenant and the role of an unexpired invitation, if it is for this person or for their verified email.
SELECT t.id, i.role FROM invitations AS i CROSS JOIN users AS u CROSS JOIN tenants AS t
WHERE i.id = ?1 AND u.id = ?2 AND t.number = i.tenant AND i.expires_at > ?3 AND u.enabled = 1 AND u.refused = 0
    AND (i.user = u.id OR u.email_verified = 1 AND i.email = u.email_lower)

-- name: join_tenant
-- Of two roles the higher one counts, which is the alphabetically first.
INSERT INTO members (tenant, user, role, created_at, created_by) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (tenant, user) DO UPDATE SET role = min(role, excluded.role)

-- name: delete_invitation
DELETE FROM invitations WHERE id = ?

-- name: delete_invitations_of_user
-- Delete the invitations of a person and of their verified email to a tenant.
DELETE FROM invitations WHERE tenant = ?1 AND (user = ?2
    OR email = (SELECT u.email_lower FROM users AS u WHERE u.id = ?2 AND u.email_verified = 1))

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
INSERT INTO sessions (id, digest, user, created_at, expires_at, last_used_at, address, agent, tenant)
VALUES (?1, ?2, ?3, ?4, ?5, ?4, ?6, ?7, ?8)

-- name: session_of_user
-- The tenant of a session of this person, which may be NULL.
SELECT tenant FROM sessions WHERE digest = ?1 AND user = ?2

-- name: session_by_id
-- The ID and the email of the person whose session this is.
SELECT CAST(json_object('user', s.user, 'email', u.email) AS BLOB)
FROM sessions AS s CROSS JOIN users AS u ON u.id = s.user WHERE s.id = ?

-- name: session_by_digest
-- An unexpired session of an enabled person.
SELECT CAST(json_object('session', json_object(
    'id', s.id, 'user', s.user, 'created_at', s.created_at, 'expires_at', s.expires_at,
    'last_used_at', s.last_used_at, 'address', s.address, 'agent', s.agent,
    'tenant', (SELECT n.id FROM tenants AS n WHERE n.number = s.tenant)), 'owner', json(w.owner)) AS BLOB)
FROM sessions AS s CROSS JOIN owners AS w ON w.id = s.user
WHERE s.digest = ?1 AND s.expires_at > ?2 AND w.enabled = 1

-- name: sessions_of_user
-- Unexpired sessions, newest first.
SELECT CAST(json_group_array(json_object(
    'id', s.id, 'user', s.user, 'created_at', s.created_at, 'expires_at', s.expires_at,
    'last_used_at', s.last_used_at, 'address', s.address, 'agent', s.agent,
    'tenant', (SELECT n.id FROM tenants AS n WHERE n.number = s.tenant))) AS BLOB)
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
