-- These workers, a JSON array of [tenant, id], are offline.
UPDATE workers SET online = 0
FROM (SELECT value ->> 0 AS tenant, value ->> 1 AS id FROM json_each(?)) AS missed
WHERE workers.tenant = missed.tenant AND workers.id = missed.id
