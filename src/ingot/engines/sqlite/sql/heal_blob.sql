UPDATE blobs SET place = ?2, damaged = 0, verified_at = ?3 WHERE number = ?1
