-- A session that holds, of a person who is let in.
SELECT CAST(json_object('session', json_object(
    'id', s.id, 'user', s.user, 'created_at', s.created_at, 'expires_at', s.expires_at,
    'last_used_at', s.last_used_at, 'address', s.address, 'agent', s.agent), 'owner', json(w.owner)) AS BLOB)
FROM sessions AS s CROSS JOIN owners AS w ON w.id = s.user
WHERE s.digest = ?1 AND s.expires_at > ?2 AND w.enabled = 1
