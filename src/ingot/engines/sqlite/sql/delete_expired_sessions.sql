DELETE FROM sessions
WHERE id IN (SELECT e.id FROM sessions AS e WHERE e.expires_at <= ?1 ORDER BY e.expires_at LIMIT ?2)
