-- Uploads under way of inputs of these jobs (a JSON array of ids).
SELECT CAST(json_group_array(json_array(t.id, u.id)) AS BLOB)
FROM json_each(?1) AS w CROSS JOIN uploads AS u INDEXED BY uploads_of_jobs ON u.job_id = w.value
CROSS JOIN tenants AS t ON t.number = u.tenant
WHERE u.job_id IS NOT NULL AND u.file = 'input' AND u.state IN ('open', 'verifying')
