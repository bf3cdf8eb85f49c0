-- Those that hold, newest first.
SELECT CAST(json_group_array(json_object(
    'id', s.id, 'user', s.user, 'created_at', s.created_at, 'expires_at', s.expires_at,
    'last_used_at', s.last_used_at, 'address', s.address, 'agent', s.agent)) AS BLOB)
FROM (
    SELECT * FROM sessions AS e WHERE e.user = ?1 AND e.expires_at > ?2 ORDER BY e.id DESC LIMIT ?3
) AS s
