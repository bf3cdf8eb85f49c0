UPDATE tokens SET revoked_at = coalesce(revoked_at, ?2) WHERE id = ?1
