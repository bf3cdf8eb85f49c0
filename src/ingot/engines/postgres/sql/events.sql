-- Events, and the oldest transaction that may still add some.

-- name: read_events
-- Batches of the current tenant from a position onwards. Running transactions may still add batches before those of later
-- ones, so readers stop below the oldest running transaction. Removed events end at the floor, below the newest batch.
SELECT e.position, e.at, e.entries,
    e.position < ingot.event_position(pg_snapshot_xmin(pg_current_snapshot())) AS settled,
    (SELECT f.event FROM ingot.event_floors AS f WHERE f.tenant = $1) AS floor
FROM ingot.events AS e
WHERE e.tenant = $1 AND e.position >= $2
ORDER BY e.position
LIMIT $3

-- name: newest_events
-- The newest batch of the current tenant: of those below every running transaction, or of all.
SELECT e.position, e.entries
FROM ingot.events AS e
WHERE e.tenant = $1 AND e.position < CASE
    WHEN $2::boolean THEN ingot.event_position(pg_snapshot_xmin(pg_current_snapshot())) ELSE 9223372036854775807
END
ORDER BY e.position DESC
LIMIT 1

-- name: horizon
-- The oldest running transaction that may have written, whether there is one, and for how long it has run, if visible:
-- sessions of other roles hide it, and a prepared transaction has no session.
SELECT pg_snapshot_xmin(s.snapshot)::text AS oldest, pg_snapshot_xmin(s.snapshot) < pg_snapshot_xmax(s.snapshot) AS is_running,
    (
        SELECT extract(epoch FROM clock_timestamp() - min(a.xact_start))::double precision FROM pg_stat_activity AS a
        WHERE a.backend_xid = pg_snapshot_xmin(s.snapshot)::xid
    ) AS seconds
FROM (SELECT pg_current_snapshot() AS snapshot) AS s
