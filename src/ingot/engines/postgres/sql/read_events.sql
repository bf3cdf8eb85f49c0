-- Batches of the tenant that is set from one transaction onwards. Transactions that still run could put theirs before
-- those of higher ones: we stop below the oldest of them.
SELECT e.xid::text::bigint AS xid, e.at, e.entries,
    e.xid < pg_snapshot_xmin(pg_current_snapshot()) AS settled
FROM ingot.events AS e
WHERE e.tenant = $1 AND e.xid >= $2::text::xid8
ORDER BY e.xid
LIMIT $3
