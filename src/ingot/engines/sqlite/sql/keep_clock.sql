UPDATE store SET clock = ?
