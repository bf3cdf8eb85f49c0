-- An attempt of a job of a tenant: that with a number, or the newest. A job that was never claimed has one with the number 0.
SELECT CAST(json_array(s.number, s.id, coalesce(a.number, 0), coalesce(a.fence, 0),
    json(iif(s.status = 'running' AND s.fence = a.fence, 'true', 'false')), s.attempts, s.status) AS BLOB)
FROM states AS s LEFT JOIN attempts AS a ON a.job = s.number
WHERE s.id = ?1 AND s.tenant = (SELECT number FROM tenants WHERE id = ?2)
    AND (?3 IS NULL OR coalesce(a.number, 0) = ?3)
ORDER BY a.fence DESC LIMIT 1
