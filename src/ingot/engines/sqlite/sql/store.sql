-- The store itself: its clock, and how often it was opened.

-- name: store_epoch
SELECT epoch FROM store

-- name: begin_epoch
-- Fences of a new epoch are above all fences of the epochs before.
UPDATE store SET epoch = epoch + 1 RETURNING epoch

-- name: store_clock
SELECT clock FROM store

-- name: keep_clock
UPDATE store SET clock = ?, last_number = ?
