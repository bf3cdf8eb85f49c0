DELETE FROM blobs WHERE number = ?
