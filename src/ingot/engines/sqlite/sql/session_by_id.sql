-- Whose session it is: their id and email.
SELECT CAST(json_object('user', s.user, 'email', u.email) AS BLOB)
FROM sessions AS s CROSS JOIN users AS u ON u.id = s.user WHERE s.id = ?
