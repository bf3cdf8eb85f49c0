DELETE FROM pauses WHERE tenant = ? AND type = ?
