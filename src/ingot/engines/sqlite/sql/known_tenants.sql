SELECT CAST(json_group_array(json_array(id, number, weight, json(limits))) AS BLOB) FROM tenants
