INSERT INTO object_store (only_row, id) VALUES (1, ?) ON CONFLICT (only_row) DO UPDATE SET id = excluded.id
