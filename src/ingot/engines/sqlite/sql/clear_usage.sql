DELETE FROM usage WHERE (tenant, owner) IN (SELECT tenant, owner FROM usage WHERE tenant = ?1 LIMIT ?2)
