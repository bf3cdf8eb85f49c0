-- The numbers of the jobs of these batches (a JSON array), in no order.
SELECT CAST(json_group_object(e.batch, json(e.jobs)) AS BLOB)
FROM json_each(?) AS w CROSS JOIN endings AS e ON e.batch = w.value
