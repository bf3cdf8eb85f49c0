-- How many unfinished jobs these tenants (a JSON array of numbers) have, by type and status.
SELECT CAST(json_group_array(json_array(t.id, c.type, c.status, c.jobs)) AS BLOB)
FROM json_each(?) AS asked
    CROSS JOIN tenants AS t ON t.number = asked.value
    CROSS JOIN counts AS c ON c.tenant = t.number AND c.status IN ('blocked', 'queued', 'running') AND c.jobs > 0
