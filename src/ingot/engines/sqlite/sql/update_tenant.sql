UPDATE tenants SET slug = ?, weight = ?, time_zone = ?, limits = ? WHERE id = ?
