SELECT CAST(json_group_array(json_array(t.id, u.id)) AS BLOB)
FROM (SELECT tenant, id FROM uploads WHERE tenant = ?1 LIMIT ?2) AS u CROSS JOIN tenants AS t ON t.number = u.tenant
