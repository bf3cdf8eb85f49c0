DELETE FROM counts WHERE (tenant, type, status) IN (SELECT tenant, type, status FROM counts WHERE tenant = ?1 LIMIT ?2)
