SELECT CAST(json_group_object(status, jobs) AS BLOB)
FROM (SELECT status, sum(jobs) AS jobs FROM counts WHERE tenant = (SELECT number FROM tenants WHERE id = ?) GROUP BY status)
