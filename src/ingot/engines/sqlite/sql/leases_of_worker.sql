-- Up to n running jobs of a worker, or of any instance of a credential, of one tenant or (0) of all.
SELECT CAST(json_group_array(json_array(id, fence)) AS BLOB) FROM (
    SELECT id, fence FROM states INDEXED BY states_leased
    WHERE status = 'running' AND (worker_id = ?1 OR substr(worker_id, 1, length(?1) + 1) = ?1 || '/') AND (?2 = 0 OR tenant = ?2)
    LIMIT ?3
)
