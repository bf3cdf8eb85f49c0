SELECT CAST(json_group_array(json_array(type, since, "by")) AS BLOB)
FROM (SELECT * FROM pauses WHERE tenant = (SELECT number FROM tenants WHERE id = ?) ORDER BY type)
