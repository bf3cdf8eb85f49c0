INSERT INTO sessions (id, digest, user, created_at, expires_at, last_used_at, address, agent)
VALUES (?1, ?2, ?3, ?4, ?5, ?4, ?6, ?7)
