DELETE FROM jobs WHERE number IN (SELECT value FROM json_each(?))
