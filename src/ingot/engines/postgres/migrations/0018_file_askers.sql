-- When a worker with access to files last asked for jobs of a type. Until now, all workers claimed jobs with files.
ALTER TABLE ingot.askers ADD COLUMN files_at bigint;
UPDATE ingot.askers SET files_at = at;
