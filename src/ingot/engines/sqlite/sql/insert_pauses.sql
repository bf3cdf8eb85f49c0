INSERT INTO pauses (tenant, type, since, "by") VALUES (?, ?, ?, ?)
