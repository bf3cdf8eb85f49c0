DELETE FROM blob_checks WHERE blob = ?
