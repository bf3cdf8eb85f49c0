INSERT INTO events (tenant, batch, at, entries) VALUES (?, ?, ?, ?)
