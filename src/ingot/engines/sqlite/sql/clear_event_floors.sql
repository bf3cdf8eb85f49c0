DELETE FROM event_floors WHERE tenant IN (SELECT tenant FROM event_floors WHERE tenant = ?1 LIMIT ?2)
