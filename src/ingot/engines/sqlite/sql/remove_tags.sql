DELETE FROM tags WHERE job IN (SELECT value FROM json_each(?))
