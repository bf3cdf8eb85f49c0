INSERT INTO idempotency_keys (tenant, type, key, job, digest) VALUES (?, ?, ?, ?, ?)
