-- Batches of the tenant that is set from one position onwards. Transactions that still run could put theirs before
-- those of higher ones: we stop below the oldest of them. What was removed ends at the floor, below the newest batch.
SELECT e.position, e.at, e.entries,
    e.position < ingot.position(pg_snapshot_xmin(pg_current_snapshot())) AS settled,
    (SELECT f.event FROM ingot.event_floors AS f WHERE f.tenant = $1) AS floor
FROM ingot.events AS e
WHERE e.tenant = $1 AND e.position >= $2
ORDER BY e.position
LIMIT $3
