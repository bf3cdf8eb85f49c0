DELETE FROM logs WHERE job IN (SELECT value FROM json_each(?))
