-- A tenant's batches from one onwards, enough of them for n events (each holds at least one).
SELECT batch, at, entries FROM events
WHERE tenant = (SELECT number FROM tenants WHERE id = ?) AND batch >= ?
ORDER BY batch
LIMIT ?
