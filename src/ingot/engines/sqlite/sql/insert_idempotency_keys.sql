INSERT INTO idempotency_keys (tenant, type, key, job_id, digest) VALUES (?, ?, ?, ?, ?)
