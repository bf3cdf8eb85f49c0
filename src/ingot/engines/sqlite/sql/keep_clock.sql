UPDATE store SET clock = ?, last_number = ?
