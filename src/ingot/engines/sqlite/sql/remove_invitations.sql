DELETE FROM invitations WHERE tenant = ?1
