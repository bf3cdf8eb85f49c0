SELECT CAST(person AS BLOB) FROM people WHERE id = ?
