-- Somebody who signs in: what is known of them is what their provider says now.
INSERT INTO users
    (id, issuer, subject, email, email_lower, email_verified, name, picture, enabled, created_at, signed_in_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 1, ?9, ?9)
ON CONFLICT (issuer, subject) DO UPDATE SET
    email = excluded.email, email_lower = excluded.email_lower, email_verified = excluded.email_verified,
    name = excluded.name, picture = excluded.picture, signed_in_at = excluded.signed_in_at
