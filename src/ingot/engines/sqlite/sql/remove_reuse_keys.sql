-- These jobs (a JSON array of numbers) answer nobody any more.
DELETE FROM reuse_keys WHERE (tenant, type, key, job) IN (
    SELECT s.tenant, s.type, j.reuse_key, j.number
    FROM json_each(?) AS w CROSS JOIN jobs AS j ON j.number = w.value CROSS JOIN states AS s ON s.number = j.number
    WHERE j.reuse_key IS NOT NULL
)
