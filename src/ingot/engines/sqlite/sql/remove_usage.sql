DELETE FROM usage WHERE (tenant, owner) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?))
