DELETE FROM keys WHERE (tenant, key) IN (SELECT tenant, key FROM keys WHERE tenant = ?1 ORDER BY key LIMIT ?2)
