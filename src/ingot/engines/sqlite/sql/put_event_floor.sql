INSERT OR REPLACE INTO event_floors (tenant, batch, place) VALUES (?, ?, ?)
