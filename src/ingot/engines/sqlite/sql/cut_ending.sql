UPDATE endings SET jobs = ?, size = ? WHERE batch = ?
