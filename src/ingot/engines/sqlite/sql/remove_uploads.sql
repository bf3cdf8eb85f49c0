DELETE FROM uploads WHERE (tenant, id) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?))
