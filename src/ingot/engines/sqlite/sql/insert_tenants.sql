INSERT INTO tenants (id, slug, weight, time_zone, limits) VALUES (?, ?, ?, ?, ?)
