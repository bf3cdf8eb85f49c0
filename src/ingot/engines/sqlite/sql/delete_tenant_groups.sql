DELETE FROM tenant_groups WHERE tenant = ?
