DELETE FROM endings WHERE batch IN (SELECT value FROM json_each(?))
