-- Of what is counted here row by row, no more than the limit says.
SELECT CAST(json_object(
    'blobs', t.blobs, 'bytes', t.bytes,
    'damaged', (SELECT count(*) FROM (SELECT 1 FROM blobs INDEXED BY blobs_damaged WHERE damaged = 1 LIMIT ?1)),
    'tombstones', (SELECT count(*) FROM (SELECT 1 FROM tombstones LIMIT ?1)),
    'trash', (SELECT count(*) FROM (SELECT 1 FROM trash LIMIT ?1)),
    'uploads', (SELECT count(*) FROM (SELECT 1 FROM uploads LIMIT ?1)),
    'verified_before', (SELECT min(verified_at) FROM blobs)) AS BLOB)
FROM blob_totals AS t
