SELECT number FROM blobs WHERE id = ?
