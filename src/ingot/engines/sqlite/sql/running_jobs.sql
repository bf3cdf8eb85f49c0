-- How many jobs run, counted so far and no further, and the numbers of those of one tenant.
SELECT CAST(json_array(count(*), json_group_array(number ORDER BY number DESC) FILTER (WHERE tenant = ?)) AS BLOB) FROM (
    SELECT number, tenant FROM states INDEXED BY states_leased WHERE status = 'running' LIMIT ?
)
