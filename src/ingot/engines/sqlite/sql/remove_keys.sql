DELETE FROM keys WHERE (tenant, key) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?))
