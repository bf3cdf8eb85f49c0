SELECT entries FROM events WHERE tenant = ? AND batch = ?
