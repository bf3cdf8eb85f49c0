-- Of these leases, a JSON array of [id, fence], those that are still held.
SELECT CAST(json_group_array(json_array(
    s.id, s.fence, s.lease_expires_at, json(iif(s.cancel_requested, 'true', 'false')))) AS BLOB)
FROM json_each(?) AS asked CROSS JOIN states AS s ON s.id = asked.value ->> 0
WHERE s.fence = asked.value ->> 1 AND s.status = 'running'
