-- Drop what lies wholly before a place in the log of an attempt.
DELETE FROM logs WHERE job = ?1 AND fence = ?2 AND start < ?3 AND start + size <= ?3
