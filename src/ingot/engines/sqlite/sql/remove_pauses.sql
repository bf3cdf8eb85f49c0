DELETE FROM pauses WHERE tenant = ?1
