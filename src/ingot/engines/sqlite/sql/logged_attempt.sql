-- An attempt of a job of a tenant: that with a number, or the newest. Every job has one with the number 0, which never began.
SELECT CAST(json_array(s.number, s.id, coalesce(a.number, 0), coalesce(a.fence, 0),
    json(iif(s.status = 'running' AND s.fence = a.fence, 'true', 'false')), s.attempts, s.status) AS BLOB)
FROM states AS s LEFT JOIN attempts AS a ON a.job = s.number AND (?3 IS NULL OR a.number = ?3)
WHERE s.id = ?1 AND s.tenant = (SELECT number FROM tenants WHERE id = ?2)
    AND (?3 IS NULL OR ?3 = 0 OR a.number IS NOT NULL)
ORDER BY a.fence DESC LIMIT 1
