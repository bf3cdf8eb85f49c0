DELETE FROM members WHERE tenant = ?1
