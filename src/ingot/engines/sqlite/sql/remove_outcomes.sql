DELETE FROM outcomes WHERE job IN (SELECT value FROM json_each(?))
