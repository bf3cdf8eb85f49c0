SELECT enabled FROM users WHERE id = ?
