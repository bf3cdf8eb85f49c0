-- Those that are where they were read (a JSON array of digests and places).
UPDATE blobs SET damaged = ?2, verified_at = ?3
FROM json_each(?1) AS r
WHERE blobs.id = unhex(r.value ->> 0) AND blobs.place IS (r.value ->> 1)
