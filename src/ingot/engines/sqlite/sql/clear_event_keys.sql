DELETE FROM event_keys WHERE (tenant, key) IN (SELECT tenant, key FROM event_keys WHERE tenant = ?1 LIMIT ?2)
