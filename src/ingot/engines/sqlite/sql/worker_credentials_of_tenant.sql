-- Of a tenant, or those shared by all; by id, from behind one.
SELECT CAST(json_group_array(json_object(
    'id', id, 'tenant', ?1, 'digest', '',
    'types', json(types), 'enabled', json(iif(enabled, 'true', 'false')), 'ending', ending,
    'created_at', created_at, 'created_by', created_by, 'regenerated_at', regenerated_at,
    'last_used_at', last_used_at)) AS BLOB)
FROM (
    SELECT * FROM worker_credentials
    WHERE tenant IS (SELECT number FROM tenants WHERE id = ?1) AND id > ?2
    ORDER BY id LIMIT ?3
)
