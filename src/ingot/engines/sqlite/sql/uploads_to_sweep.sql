-- Uploads whose time is over, and those for an attempt that does not run under its fence any more. What is done for an
-- attempt that runs stays for as long as that does.
SELECT CAST(json_group_array(json_array(t.id, f.id)) AS BLOB)
FROM (
    SELECT tenant, id FROM (
        SELECT tenant, id FROM uploads INDEXED BY uploads_by_end
        WHERE expires_at <= ?1 AND (fence IS NULL OR state <> 'done') ORDER BY expires_at LIMIT ?2
    )
    UNION
    SELECT tenant, id FROM (
        SELECT u.tenant, u.id FROM uploads AS u INDEXED BY uploads_of_jobs
        WHERE u.job_id IS NOT NULL AND u.fence IS NOT NULL AND NOT EXISTS (
            SELECT 1 FROM states AS s
            WHERE s.id = u.job_id AND s.tenant = u.tenant AND s.status = 'running' AND s.fence = u.fence
        )
        LIMIT ?2
    )
    LIMIT ?2
) AS f CROSS JOIN tenants AS t ON t.number = f.tenant
