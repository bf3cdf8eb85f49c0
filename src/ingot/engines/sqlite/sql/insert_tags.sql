INSERT INTO tags (job, tag, tenant) VALUES (?, ?, ?)
