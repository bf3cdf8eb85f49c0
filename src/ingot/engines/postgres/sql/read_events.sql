-- Batches of the tenant that is set from one position onwards. Transactions that still run could put theirs before
-- those of higher ones: we stop below the oldest of them.
SELECT e.position, e.at, e.entries,
    e.position < ingot.position(pg_snapshot_xmin(pg_current_snapshot())) AS settled
FROM ingot.events AS e
WHERE e.tenant = $1 AND e.position >= $2
ORDER BY e.position
LIMIT $3
