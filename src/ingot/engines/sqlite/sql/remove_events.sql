DELETE FROM events WHERE tenant = ? AND batch <= ?
