INSERT INTO logins (digest, next, link, expires_at) VALUES (?, ?, ?, ?)
