-- The jobs with these ids (a JSON array), for those that are to wait for them: id, tenant, number, whether it has ended.
SELECT CAST(json_group_array(json_array(
    s.id, t.id, s.number, json(iif(s.status IN ('succeeded', 'dead', 'canceled'), 'true', 'false')))) AS BLOB)
FROM states AS s JOIN tenants AS t ON t.number = s.tenant
WHERE s.id IN (SELECT value FROM json_each(?))
