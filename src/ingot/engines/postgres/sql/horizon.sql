-- The oldest transaction that runs and may have written, whether there is one, and since when, as far as we may know:
-- sessions of other roles do not tell, and one that was prepared has no session.
SELECT pg_snapshot_xmin(s.now)::text AS oldest, pg_snapshot_xmin(s.now) < pg_snapshot_xmax(s.now) AS held,
    (
        SELECT extract(epoch FROM clock_timestamp() - min(a.xact_start))::double precision FROM pg_stat_activity AS a
        WHERE a.backend_xid = pg_snapshot_xmin(s.now)::xid
    ) AS seconds
FROM (SELECT pg_current_snapshot() AS now) AS s
