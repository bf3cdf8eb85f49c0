DELETE FROM worker_credentials WHERE tenant = ?1
