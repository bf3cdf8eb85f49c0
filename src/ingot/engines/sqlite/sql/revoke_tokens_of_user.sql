-- In a tenant, or everywhere.
UPDATE tokens SET revoked_at = ?2
WHERE user = ?1 AND user IS NOT NULL AND revoked_at IS NULL AND (?3 IS NULL OR tenant = ?3)
