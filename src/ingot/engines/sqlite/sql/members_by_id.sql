-- Those of these ids (a JSON array) that have a role in a tenant: people and invitations, by id.
-- The highest role counts, which is the first by its letters; one of their own comes before those by groups.
SELECT CAST(json_group_array(json(found.member)) AS BLOB)
FROM (
    SELECT json_object(
        'id', u.id, 'role', min(s.role), 'sources',
        json_group_array(json_object('role', s.role, 'group', s.name) ORDER BY s.name),
        'user', u.id, 'email', u.email, 'name', u.name, 'picture', u.picture) AS member, u.id AS id
    FROM (
        SELECT m.user, m.role, NULL AS name
        FROM json_each(?2) AS asked CROSS JOIN members AS m ON m.tenant = ?1 AND m.user = asked.value
        UNION ALL
        SELECT g.user, t.role, t.name
        FROM json_each(?2) AS asked
            CROSS JOIN tenant_groups AS t ON t.tenant = ?1
            CROSS JOIN user_groups AS g ON g.user = asked.value AND g.name = t.name
    ) AS s CROSS JOIN users AS u ON u.id = s.user
    GROUP BY u.id
    UNION ALL
    SELECT json_object(
        'id', i.id, 'role', i.role, 'sources', json_array(json_object('role', i.role)), 'email', i.email,
        'invited', json('true')), i.id
    FROM json_each(?2) AS asked CROSS JOIN invitations AS i ON i.id = asked.value AND i.tenant = ?1
    ORDER BY 2
) AS found
