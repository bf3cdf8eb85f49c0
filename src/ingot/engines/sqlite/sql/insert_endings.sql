INSERT INTO endings (tenant, type, finished_at, size, jobs) VALUES (?, ?, ?, ?, ?)
