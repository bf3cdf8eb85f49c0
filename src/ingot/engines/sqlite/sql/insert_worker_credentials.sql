INSERT INTO worker_credentials (id, tenant, digest, types, enabled, ending, created_at, created_by)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
