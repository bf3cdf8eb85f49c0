SELECT CAST(json_object(
    'id', w.id, 'tenant', (SELECT n.id FROM tenants AS n WHERE n.number = w.tenant), 'digest', hex(w.digest),
    'types', json(w.types), 'enabled', json(iif(w.enabled, 'true', 'false')), 'ending', w.ending,
    'created_at', w.created_at, 'created_by', w.created_by, 'regenerated_at', w.regenerated_at,
    'last_used_at', w.last_used_at) AS BLOB)
FROM worker_credentials AS w WHERE w.id = ?
