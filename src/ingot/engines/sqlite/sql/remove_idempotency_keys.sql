-- The keys that made these jobs (a JSON array of numbers) are free.
DELETE FROM idempotency_keys WHERE (tenant, type, key) IN (
    SELECT s.tenant, s.type, j.idempotency_key
    FROM json_each(?) AS w CROSS JOIN jobs AS j ON j.number = w.value CROSS JOIN states AS s ON s.number = j.number
    WHERE j.idempotency_key IS NOT NULL
)
