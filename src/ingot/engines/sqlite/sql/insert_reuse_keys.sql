INSERT OR REPLACE INTO reuse_keys (tenant, type, key, job) VALUES (?, ?, ?, ?)
