SELECT CAST(json_group_array(json_array(t.id, p.type, p.since, p."by")) AS BLOB)
FROM pauses AS p JOIN tenants AS t ON t.number = p.tenant
