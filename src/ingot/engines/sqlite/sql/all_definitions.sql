SELECT CAST(json_group_array(json(definition)) AS BLOB)
FROM (SELECT * FROM definitions ORDER BY type, tenant)
