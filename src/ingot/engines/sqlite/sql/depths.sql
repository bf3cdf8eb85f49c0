-- The jobs of every tenant by status: of the oldest tenants each by itself, of all others together, without a name.
SELECT CAST(json_group_array(json_array((SELECT slug FROM tenants WHERE number = d.tenant), json(d.counts))) AS BLOB)
FROM (
    SELECT tenant, json_group_object(status, jobs) AS counts
    FROM (
        SELECT CASE WHEN c.tenant <= l.last THEN c.tenant END AS tenant, c.status, sum(c.jobs) AS jobs
        FROM (SELECT max(number) AS last FROM (SELECT number FROM tenants ORDER BY number LIMIT ?)) AS l
        CROSS JOIN counts AS c
        WHERE c.tenant NOT IN (SELECT number FROM tenants WHERE removed_at IS NOT NULL)
        GROUP BY 1, c.status
    )
    GROUP BY tenant
) AS d
