SELECT CAST(json_group_object(id, number) AS BLOB) FROM tenants
