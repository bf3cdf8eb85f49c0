-- The row of VALUES is repeated.
INSERT INTO trash (place, multipart) VALUES (?, ?) ON CONFLICT (place) DO NOTHING
