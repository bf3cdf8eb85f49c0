DELETE FROM batches WHERE (tenant, batch) IN (SELECT tenant, batch FROM batches WHERE tenant = ?1 LIMIT ?2)
