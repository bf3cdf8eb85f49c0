SELECT bytes, reserved, keys, key_bytes FROM usage WHERE tenant = ?1 AND owner = ?2
