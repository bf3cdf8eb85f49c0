DELETE FROM job_files WHERE job IN (SELECT value FROM json_each(?)) AND kind IN ('output', 'checkpoint')
