SELECT min(lease_expires_at) FROM states INDEXED BY states_leased WHERE status = 'running'
