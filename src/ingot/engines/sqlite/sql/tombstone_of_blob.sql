SELECT at FROM tombstones WHERE blob = ?
