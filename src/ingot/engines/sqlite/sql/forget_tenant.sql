DELETE FROM tenants WHERE number = ?1 AND removed_at IS NOT NULL
