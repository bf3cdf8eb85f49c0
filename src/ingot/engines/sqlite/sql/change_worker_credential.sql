UPDATE worker_credentials SET enabled = coalesce(?2, enabled), digest = coalesce(?3, digest), ending = coalesce(?4, ending),
    regenerated_at = CASE WHEN ?3 IS NULL THEN regenerated_at ELSE ?5 END
WHERE id = ?1
