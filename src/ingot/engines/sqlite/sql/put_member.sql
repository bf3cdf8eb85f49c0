INSERT INTO members (tenant, user, role, created_at, created_by) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (tenant, user) DO UPDATE SET role = excluded.role
