DELETE FROM reuse_keys WHERE (tenant, type, key) IN (SELECT tenant, type, key FROM reuse_keys WHERE tenant = ?1 LIMIT ?2)
