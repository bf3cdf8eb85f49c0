-- The caller that canceled a job, or asked it to stop.
ALTER TABLE ingot.jobs ADD COLUMN canceled_by text;
