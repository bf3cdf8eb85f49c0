-- Bytes are answered as they are, so this is no JSON text.
SELECT lower(hex(b.id)), lower(hex(b.sha256)), b.size, b.place, b.damaged,
    (SELECT y.bytes FROM blob_bytes AS y WHERE y.blob = b.number),
    (SELECT c.checks FROM blob_checks AS c WHERE c.blob = b.number)
FROM (SELECT * FROM blobs WHERE verified_at < ?1 ORDER BY verified_at LIMIT ?2) AS b
