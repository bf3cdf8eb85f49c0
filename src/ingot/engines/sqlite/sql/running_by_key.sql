-- How many jobs with a limit key run, of these types and tenants: a JSON array of [type, tenant's id, its number].
SELECT CAST(json_group_array(json_array(type, tenant, limit_key, jobs)) AS BLOB)
FROM (
    SELECT asked.value ->> 0 AS type, asked.value ->> 1 AS tenant, s.limit_key, count(*) AS jobs
    FROM json_each(?) AS asked CROSS JOIN states AS s INDEXED BY states_keyed
        ON s.tenant = asked.value ->> 2 AND s.type = asked.value ->> 0
    WHERE s.status = 'running' AND s.limit_key <> ''
    GROUP BY asked.key, s.limit_key
)
