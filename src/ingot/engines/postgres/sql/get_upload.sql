-- An upload of the tenant that is set, as JSON.
SELECT row_to_json(u)::text FROM ingot.uploads AS u WHERE u.tenant = $1 AND u.id = $2
