-- The first job from a number on, and when it was made.
SELECT number, created_at FROM jobs WHERE number >= ? ORDER BY number LIMIT 1
