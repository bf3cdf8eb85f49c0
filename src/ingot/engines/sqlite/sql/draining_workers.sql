SELECT CAST(json_group_array(json_array((SELECT t.id FROM tenants AS t WHERE t.number = w.tenant), w.id)) AS BLOB)
FROM workers AS w INDEXED BY workers_draining WHERE w.draining = 1
