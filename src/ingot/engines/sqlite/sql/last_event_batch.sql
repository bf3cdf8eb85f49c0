-- The newest batch of all tenants, by jumping from tenant to tenant.
SELECT coalesce(max((SELECT max(batch) FROM events WHERE tenant = t.number)), 0) FROM tenants AS t
