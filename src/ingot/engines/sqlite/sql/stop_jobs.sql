-- Up to n running jobs of a tenant are asked to stop.
UPDATE states SET cancel_requested = 1 WHERE number IN (
    SELECT number FROM states INDEXED BY states_leased
    WHERE status = 'running' AND tenant = ?1 AND cancel_requested = 0 LIMIT ?2
)
