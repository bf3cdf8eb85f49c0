-- Who a provider knows by this subject, and whether they are let in.
SELECT id, enabled FROM users WHERE issuer = ?1 AND subject = ?2
