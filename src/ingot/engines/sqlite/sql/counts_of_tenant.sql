SELECT CAST(json_group_object(status, jobs) AS BLOB)
FROM (
    SELECT status, sum(jobs) AS jobs FROM counts
    WHERE tenant = (SELECT number FROM tenants WHERE id = ?1) AND (?2 IS NULL OR type = ?2)
    GROUP BY status
)
