SELECT min(run_at) FROM states INDEXED BY states_later WHERE status = 'queued' AND due = 0
