-- Keys that were kept long enough, a bounded number of them.
DELETE FROM event_keys WHERE (tenant, key) IN (
    SELECT tenant, key FROM event_keys WHERE at <= ? ORDER BY at LIMIT ?
)
