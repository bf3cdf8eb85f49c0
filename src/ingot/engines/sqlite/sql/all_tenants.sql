SELECT CAST(json_group_array(json_object(
    'id', id, 'slug', slug, 'weight', weight, 'time_zone', time_zone, 'limits', json(limits))) AS BLOB)
FROM (SELECT * FROM tenants ORDER BY slug)
