INSERT INTO tenants (number, id, slug, weight, time_zone, limits) VALUES (?, ?, ?, ?, ?, ?)
