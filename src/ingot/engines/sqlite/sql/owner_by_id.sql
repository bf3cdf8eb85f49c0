SELECT CAST(owner AS BLOB) FROM owners WHERE id = ?
