UPDATE jobs SET reason = ?2 WHERE number = ?1
