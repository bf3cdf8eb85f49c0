-- Fences of a new epoch are above all fences of the epochs before.
UPDATE store SET epoch = epoch + 1 RETURNING epoch
