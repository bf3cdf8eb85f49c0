UPDATE blobs SET damaged = ?2, verified_at = ?3 WHERE id IN (SELECT unhex(value) FROM json_each(?1))
