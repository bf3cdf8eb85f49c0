-- Invitations to an email become a person's own roles; of two in a tenant the higher one, the first by its letters.
INSERT INTO members (tenant, user, role, created_at, created_by)
SELECT i.tenant, ?1, i.role, ?3, i.created_by FROM invitations AS i WHERE i.email = ?2
ON CONFLICT (tenant, user) DO UPDATE SET role = min(role, excluded.role)
