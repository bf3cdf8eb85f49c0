DELETE FROM members WHERE tenant = ?1 AND user = ?2
