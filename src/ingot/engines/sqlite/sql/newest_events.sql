-- The newest batch of a tenant.
SELECT batch, entries FROM events
WHERE tenant = (SELECT number FROM tenants WHERE id = ?)
ORDER BY batch DESC
LIMIT 1
