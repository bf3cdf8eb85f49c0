SELECT id FROM invitations WHERE tenant = ?1 AND email = ?2
