SELECT CAST(json_group_array(json_object(
    'id', id, 'slug', slug, 'weight', weight, 'time_zone', time_zone, 'limits', json(limits),
    'groups', json((SELECT json_group_object(g.name, g.role) FROM tenant_groups AS g WHERE g.tenant = number)))) AS BLOB)
FROM (SELECT * FROM tenants WHERE removed_at IS NULL AND slug > ?1 ORDER BY slug LIMIT ?2)
