-- The inputs that a job still waits for, by name.
SELECT u.name FROM ingot.uploads AS u
WHERE u.job = $1 AND u.job IS NOT NULL AND u.fence IS NULL AND u.state IN ('open', 'verifying')
ORDER BY u.name COLLATE "C"
