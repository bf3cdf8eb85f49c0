-- The clock and the epoch of the store.

-- name: store_epoch
SELECT epoch FROM store

-- name: begin_epoch
-- Fences of a new epoch are higher than all fences of earlier epochs.
UPDATE store SET epoch = epoch + 1 RETURNING epoch

-- name: store_clock
SELECT clock FROM store

-- name: save_clock
UPDATE store SET clock = ?, last_number = ?

-- name: schema_version
-- The number of the newest migration.
SELECT max(number) FROM migrations
