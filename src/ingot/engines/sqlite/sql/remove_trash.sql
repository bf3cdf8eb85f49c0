DELETE FROM trash WHERE place IN (SELECT value FROM json_each(?))
