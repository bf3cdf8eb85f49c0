-- Which jobs these keys made: pairs of the asked-for position and the job, with the digest of its payload in hex.
SELECT CAST(json_group_array(json_array(w.key, k.job, hex(k.digest))) AS BLOB)
FROM json_each(?) AS w CROSS JOIN idempotency_keys AS k
    ON k.tenant = w.value ->> 0 AND k.type = w.value ->> 1 AND k.key = w.value ->> 2
