DELETE FROM sessions WHERE digest = ?
