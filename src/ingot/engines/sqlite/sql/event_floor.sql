SELECT batch, place FROM event_floors WHERE tenant = (SELECT number FROM tenants WHERE id = ?)
