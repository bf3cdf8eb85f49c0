UPDATE worker_credentials SET last_used_at = ?2 WHERE id = ?1 AND coalesce(last_used_at, 0) < ?2
