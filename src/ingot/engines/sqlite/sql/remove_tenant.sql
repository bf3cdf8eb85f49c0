UPDATE tenants SET id = 'removed ' || id, slug = 'removed ' || id, removed_at = ?2 WHERE number = ?1 RETURNING id
