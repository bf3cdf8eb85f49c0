INSERT INTO tags (job_id, tag, tenant) VALUES (?, ?, ?)
