DELETE FROM idempotency_keys WHERE (tenant, type, key) IN (SELECT tenant, type, key FROM idempotency_keys WHERE tenant = ?1 LIMIT ?2)
