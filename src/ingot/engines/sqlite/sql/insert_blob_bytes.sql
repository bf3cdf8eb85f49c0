INSERT INTO blob_bytes (blob, bytes) VALUES (?, ?)
