DELETE FROM workers WHERE tenant = ?1 AND id = ?2
