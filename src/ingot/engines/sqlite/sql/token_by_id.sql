SELECT CAST(json_object(
    'id', t.id, 'tenant', (SELECT n.id FROM tenants AS n WHERE n.number = t.tenant), 'digest', hex(t.digest),
    'description', t.description, 'grants', json(t.grants), 'limits', json(t.limits), 'ending', t.ending,
    'created_at', t.created_at, 'created_by', t.created_by, 'expires_at', t.expires_at,
    'last_used_at', t.last_used_at, 'revoked_at', t.revoked_at, 'user', t.user,
    'owner', json((SELECT w.owner FROM owners AS w WHERE w.id = t.user))) AS BLOB)
FROM tokens AS t WHERE t.id = ?
