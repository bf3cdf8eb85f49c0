-- Which jobs answer those that ask for the same: pairs of the asked-for position and the job. Keys are in hex.
SELECT CAST(json_group_array(json_array(w.key, k.job)) AS BLOB)
FROM json_each(?) AS w CROSS JOIN reuse_keys AS k
    ON k.tenant = w.value ->> 0 AND k.type = w.value ->> 1 AND k.key = unhex(w.value ->> 2)
CROSS JOIN states AS s ON s.number = k.job
WHERE s.status NOT IN ('dead', 'canceled')
