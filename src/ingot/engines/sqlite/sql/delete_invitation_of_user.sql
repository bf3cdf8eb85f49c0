-- The one that a person has, as their email is verified.
DELETE FROM invitations
WHERE tenant = ?1 AND email = (SELECT u.email_lower FROM users AS u WHERE u.id = ?2 AND u.email_verified = 1)
