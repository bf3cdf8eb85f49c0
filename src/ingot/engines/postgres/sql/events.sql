-- Events, and the oldest transaction that may still add some.

-- name: read_events
-- Batches of the tenant that is set from one position onwards. Transactions that still run could put theirs before
-- those of higher ones: we stop below the oldest of them. What was removed ends at the floor, below the newest batch.
SELECT e.position, e.at, e.entries,
    e.position < ingot.position(pg_snapshot_xmin(pg_current_snapshot())) AS settled,
    (SELECT f.event FROM ingot.event_floors AS f WHERE f.tenant = $1) AS floor
FROM ingot.events AS e
WHERE e.tenant = $1 AND e.position >= $2
ORDER BY e.position
LIMIT $3

-- name: newest_events
-- The newest batch of the tenant that is set; the newest that is settled, or of all.
SELECT e.position, e.entries
FROM ingot.events AS e
WHERE e.tenant = $1 AND e.position < CASE
    WHEN $2::boolean THEN ingot.position(pg_snapshot_xmin(pg_current_snapshot())) ELSE 9223372036854775807
END
ORDER BY e.position DESC
LIMIT 1

-- name: horizon
-- The oldest transaction that runs and may have written, whether there is one, and since when, as far as we may know:
-- sessions of other roles do not tell, and one that was prepared has no session.
SELECT pg_snapshot_xmin(s.now)::text AS oldest, pg_snapshot_xmin(s.now) < pg_snapshot_xmax(s.now) AS held,
    (
        SELECT extract(epoch FROM clock_timestamp() - min(a.xact_start))::double precision FROM pg_stat_activity AS a
        WHERE a.backend_xid = pg_snapshot_xmin(s.now)::xid
    ) AS seconds
FROM (SELECT pg_current_snapshot() AS now) AS s
