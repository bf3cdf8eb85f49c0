-- What is kept of these jobs (a JSON array of numbers).
INSERT OR REPLACE INTO history (tenant, finished_at, id, type, status, attempts, created_at, last_error)
SELECT s.tenant, s.finished_at, s.id, s.type, s.status, s.attempts, j.created_at, iif(s.failures + s.crashes > 0, substr((
    SELECT o.error FROM outcomes AS o
    WHERE o.job = s.number AND o.error IS NOT NULL ORDER BY o.fence DESC LIMIT 1), 1, ?), NULL)
FROM json_each(?) AS w CROSS JOIN states AS s ON s.number = w.value CROSS JOIN jobs AS j ON j.number = s.number
