DELETE FROM definitions WHERE tenant = (SELECT id FROM tenants WHERE number = ?1)
