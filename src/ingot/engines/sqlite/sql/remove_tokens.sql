DELETE FROM tokens WHERE tenant = ?1
