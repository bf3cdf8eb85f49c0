DELETE FROM blob_bytes WHERE blob = ?
