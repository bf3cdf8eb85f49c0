DELETE FROM workers WHERE (tenant, id) IN (SELECT tenant, id FROM workers WHERE tenant = ?1 LIMIT ?2)
