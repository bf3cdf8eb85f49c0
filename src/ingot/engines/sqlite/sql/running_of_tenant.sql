-- Whether a job of a tenant runs.
SELECT EXISTS (SELECT 1 FROM states INDEXED BY states_live WHERE tenant = ?1 AND finished_at IS NULL)
