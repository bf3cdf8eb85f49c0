DELETE FROM sessions WHERE user = ?
