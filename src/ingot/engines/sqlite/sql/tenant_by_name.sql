SELECT CAST(json_object(
    'id', id, 'slug', slug, 'weight', weight, 'time_zone', time_zone, 'limits', json(limits),
    'groups', json((SELECT json_group_object(g.name, g.role) FROM tenant_groups AS g WHERE g.tenant = number))) AS BLOB)
FROM tenants WHERE (id = ?1 OR slug = ?1) AND removed_at IS NULL
ORDER BY id = ?1 DESC LIMIT 1
