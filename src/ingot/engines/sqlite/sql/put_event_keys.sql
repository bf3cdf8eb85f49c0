INSERT OR REPLACE INTO event_keys (tenant, key, digest, batch, place, at) VALUES (?, ?, ?, ?, ?, ?)
