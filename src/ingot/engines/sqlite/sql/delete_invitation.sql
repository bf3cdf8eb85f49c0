DELETE FROM invitations WHERE id = ?
