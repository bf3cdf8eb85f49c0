SELECT CAST(json_group_object(status, jobs) AS BLOB)
FROM (SELECT status, sum(jobs) AS jobs FROM counts WHERE tenant = ? GROUP BY status)
