INSERT INTO tokens (id, tenant, digest, description, grants, limits, ending, created_at, created_by, expires_at, user)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
