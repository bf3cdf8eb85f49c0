-- The newest batch of the tenant that is set; the newest that is settled, or of all.
SELECT e.position, e.entries
FROM ingot.events AS e
WHERE e.tenant = $1 AND e.position < CASE
    WHEN $2::boolean THEN ingot.position(pg_snapshot_xmin(pg_current_snapshot())) ELSE 9223372036854775807
END
ORDER BY e.position DESC
LIMIT 1
