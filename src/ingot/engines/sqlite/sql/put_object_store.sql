INSERT INTO object_store (only_row, id, database) VALUES (1, ?, lower(hex(randomblob(16))))
ON CONFLICT (only_row) DO UPDATE SET id = excluded.id
