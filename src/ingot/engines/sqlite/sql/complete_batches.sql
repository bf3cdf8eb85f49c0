-- Those of these batches (a JSON array of tenant and name) in which nothing is left unfinished, with their tenants.
SELECT CAST(json_group_array(json_array(t.id, json_object(
    'batch', b.batch, 'total', b.total, 'unfinished', 0, 'succeeded', b.succeeded, 'dead', b.dead, 'canceled', b.canceled
))) AS BLOB)
FROM json_each(?) AS e
CROSS JOIN batches AS b ON b.tenant = e.value ->> 0 AND b.batch = e.value ->> 1
CROSS JOIN tenants AS t ON t.number = b.tenant
WHERE b.total = b.succeeded + b.dead + b.canceled
