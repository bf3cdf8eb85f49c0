DELETE FROM tags WHERE job_id = ?
