UPDATE workers SET seen_at = ?3, online = 1 WHERE tenant = ?1 AND id = ?2
