-- The clock and the epoch of the store.

-- name: store_epoch
SELECT epoch FROM store

-- name: begin_epoch
-- Fences of a new epoch are higher than all fences of earlier epochs.
UPDATE store SET epoch = epoch + 1 RETURNING epoch

-- name: store_clock
SELECT clock FROM store

-- name: save_clock
-- The clock is the latest time that was ever stored.
UPDATE store SET clock = max(clock, ?), last_number = ?

-- name: shorten_leases
-- Let leases end at ?2 or earlier, and their attempts have begun at ?1 or earlier.
UPDATE states INDEXED BY states_leased
SET lease_expires_at = min(lease_expires_at, ?2), started_at = min(started_at, ?1), told_at = min(told_at, ?1)
WHERE status = 'running'

-- name: correct_running_attempts
UPDATE attempts SET started_at = ?1
FROM states AS s INDEXED BY states_leased
WHERE s.status = 'running' AND attempts.job = s.number AND attempts.fence = s.fence AND attempts.started_at > ?1

-- name: restart_delays
-- Jobs that wait for their next attempt since a time after ?1: the delay begins at ?1.
UPDATE states INDEXED BY states_later SET run_at = ?1 + o.run_at - o.finished_at
FROM outcomes AS o
WHERE states.status = 'queued' AND states.due = 0 AND states.run_at > ?1
    AND o.job = states.number AND o.fence = states.fence AND o.run_at = states.run_at AND o.finished_at > ?1

-- name: correct_workers_seen
UPDATE workers SET seen_at = ?1 WHERE seen_at > ?1

-- name: schema_version
-- The number of the newest migration.
SELECT max(number) FROM migrations
