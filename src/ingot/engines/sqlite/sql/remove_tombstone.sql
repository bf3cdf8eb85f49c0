DELETE FROM tombstones WHERE blob = ?
