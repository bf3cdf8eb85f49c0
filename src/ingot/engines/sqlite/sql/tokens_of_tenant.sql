-- Of a tenant, or of the operator; newest first, from below an id.
SELECT CAST(json_group_array(json_object(
    'id', id, 'tenant', ?1, 'digest', '',
    'description', description, 'grants', json(grants), 'limits', json(limits), 'ending', ending,
    'created_at', created_at, 'created_by', created_by, 'expires_at', expires_at,
    'last_used_at', last_used_at, 'revoked_at', revoked_at, 'user', user)) AS BLOB)
FROM (
    SELECT * FROM tokens
    WHERE tenant IS (SELECT number FROM tenants WHERE id = ?1) AND id < ?2
    ORDER BY id DESC LIMIT ?3
)
