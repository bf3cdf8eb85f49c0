UPDATE workers SET draining = 1 WHERE tenant = ?1 AND id = ?2 AND draining = 0
