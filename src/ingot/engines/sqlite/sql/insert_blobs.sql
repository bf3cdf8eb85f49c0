-- The row of VALUES is repeated.
INSERT INTO blobs (number, id, sha256, size, place, damaged, verified_at) VALUES (?, ?, ?, ?, ?, ?, ?)
