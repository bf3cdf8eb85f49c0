-- The youngest counts. The row of VALUES is repeated.
INSERT INTO tombstones (blob, at) VALUES (?, ?) ON CONFLICT (blob) DO UPDATE SET at = excluded.at
