INSERT INTO blob_checks (blob, checks) VALUES (?, ?)
