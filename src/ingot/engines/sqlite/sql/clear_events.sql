DELETE FROM events WHERE (tenant, batch) IN (SELECT tenant, batch FROM events WHERE tenant = ?1 LIMIT ?2)
