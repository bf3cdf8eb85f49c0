UPDATE users SET enabled = ?2 WHERE id = ?1
