-- Ids of people and invitations with a role in a tenant, in order, from behind one. Of each group no more are looked at
-- than the page has rows.
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
