SELECT CAST(json_group_array(json_array(
    id, number, weight, json(limits), json(iif(removed_at IS NULL, 'false', 'true')))) AS BLOB) FROM tenants
