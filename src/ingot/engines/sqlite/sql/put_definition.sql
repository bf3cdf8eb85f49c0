INSERT INTO definitions (tenant, type, definition) VALUES (?, ?, ?)
ON CONFLICT (tenant, type) DO UPDATE SET definition = excluded.definition
