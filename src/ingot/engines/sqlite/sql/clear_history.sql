DELETE FROM history WHERE (tenant, finished_at, id) IN (SELECT tenant, finished_at, id FROM history WHERE tenant = ?1 LIMIT ?2)
