INSERT INTO logs (job, fence, start, size, text) VALUES (?, ?, ?, ?, ?)
