SELECT CAST(json_group_array(json_array(id, number, weight)) AS BLOB) FROM tenants
