DELETE FROM endings WHERE batch IN (SELECT batch FROM endings WHERE tenant = ?1 LIMIT ?2)
