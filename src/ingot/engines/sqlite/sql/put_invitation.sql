-- Answers the id it has now: one that was there before keeps its own.
INSERT INTO invitations (id, tenant, email, role, created_at, created_by) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, email) DO UPDATE SET role = excluded.role
RETURNING id
