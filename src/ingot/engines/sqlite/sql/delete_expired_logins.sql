DELETE FROM logins
WHERE digest IN (SELECT e.digest FROM logins AS e WHERE e.expires_at <= ?1 ORDER BY e.expires_at LIMIT ?2)
