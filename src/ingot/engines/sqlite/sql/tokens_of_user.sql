-- Newest first, from below an id.
SELECT CAST(json_group_array(json_object(
    'id', t.id, 'tenant', (SELECT n.id FROM tenants AS n WHERE n.number = t.tenant), 'digest', '',
    'description', t.description, 'grants', json(t.grants), 'limits', json(t.limits), 'ending', t.ending,
    'created_at', t.created_at, 'created_by', t.created_by, 'expires_at', t.expires_at,
    'last_used_at', t.last_used_at, 'revoked_at', t.revoked_at, 'user', t.user)) AS BLOB)
FROM (SELECT * FROM tokens AS o WHERE o.user = ?1 AND o.user IS NOT NULL AND o.id < ?2 ORDER BY o.id DESC LIMIT ?3) AS t
