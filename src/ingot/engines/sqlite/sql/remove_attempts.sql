DELETE FROM attempts WHERE job IN (SELECT value FROM json_each(?))
