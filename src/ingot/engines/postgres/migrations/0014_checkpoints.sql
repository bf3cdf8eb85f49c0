-- Checkpoints: files that attempts save for later attempts. They are deleted when the job succeeds, like earlier outputs.
ALTER TABLE ingot.uploads DROP CONSTRAINT uploads_file_check,
    ADD CONSTRAINT uploads_file_check CHECK (file IN ('input', 'output', 'log', 'checkpoint'));
ALTER TABLE ingot.job_files DROP CONSTRAINT job_files_kind_check,
    ADD CONSTRAINT job_files_kind_check CHECK (kind IN ('input', 'output', 'log', 'payload', 'checkpoint'));
DROP INDEX ingot.job_files_made;
CREATE INDEX job_files_made ON ingot.job_files (job) WHERE kind IN ('output', 'checkpoint');
