DELETE FROM logins WHERE digest = ?1 AND link = ?2 AND expires_at > ?3 RETURNING next
