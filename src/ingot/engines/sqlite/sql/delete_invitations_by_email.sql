DELETE FROM invitations WHERE email = ?
