-- Those that people made in a tenant where they were by an invitation to their email, and not by a role of their own.
UPDATE tokens SET revoked_at = ?3
WHERE user IN (
    SELECT u.id FROM users AS u
    WHERE u.email_lower = ?2 AND u.email_verified = 1
        AND NOT EXISTS (SELECT 1 FROM members AS m WHERE m.tenant = ?1 AND m.user = u.id)
) AND user IS NOT NULL AND +tenant = ?1 AND revoked_at IS NULL  -- By the people: a tenant has more tokens.
