-- A tenant's own definitions and those for all, by type.
SELECT CAST(json_group_array(json(definition)) AS BLOB)
FROM (SELECT * FROM definitions WHERE tenant IN ('', ?) ORDER BY type, tenant)
