-- A batch of a tenant in numbers.
SELECT CAST(json_object(
    'batch', batch, 'total', total, 'unfinished', total - succeeded - dead - canceled, 'succeeded', succeeded,
    'dead', dead, 'canceled', canceled) AS BLOB)
FROM batches WHERE tenant = (SELECT number FROM tenants WHERE id = ?) AND batch = ?
