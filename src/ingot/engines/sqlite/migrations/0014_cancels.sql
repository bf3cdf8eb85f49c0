-- The caller that canceled a job, or asked it to stop.
ALTER TABLE jobs ADD COLUMN canceled_by TEXT;

-- Attempts that timed out or were canceled have outcomes of their own. Only the CHECK of the column changes. SQLite can
-- replace the text of the table for that, so that the table, with all results, is not written again.
PRAGMA writable_schema = ON;
UPDATE sqlite_schema
SET sql = replace(sql, '''snoozed'', ''released'', ''lost''', '''timed_out'', ''snoozed'', ''released'', ''canceled'', ''lost''')
WHERE type = 'table' AND name = 'outcomes';
PRAGMA writable_schema = RESET;
