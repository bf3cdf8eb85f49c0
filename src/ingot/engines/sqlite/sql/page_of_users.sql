-- Newest first, from below an id.
SELECT CAST(json_group_array(json(p.person)) AS BLOB)
FROM (
    SELECT u.id FROM users AS u WHERE u.id < ?1 ORDER BY u.id DESC LIMIT ?2
) AS o CROSS JOIN people AS p ON p.id = o.id
