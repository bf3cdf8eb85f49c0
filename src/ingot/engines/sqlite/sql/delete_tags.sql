DELETE FROM tags WHERE job = ?
