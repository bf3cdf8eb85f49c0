SELECT digest, batch, place FROM event_keys WHERE tenant = ? AND key = ? AND at > ?
