DELETE FROM states WHERE number IN (SELECT value FROM json_each(?))
