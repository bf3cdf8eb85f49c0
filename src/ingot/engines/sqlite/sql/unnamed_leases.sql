-- Up to n running jobs of this very worker, of a tenant or of all, claimed before an instant, that it did not name: those
-- it named are a JSON array of [id, fence].
SELECT CAST(json_group_array(json_array(id, fence)) AS BLOB) FROM (
    SELECT id, fence FROM states INDEXED BY states_held
    WHERE status = 'running' AND worker_id = ?1 AND (?2 = 0 OR tenant = ?2) AND started_at < ?3
        AND (id, fence) NOT IN (SELECT value ->> 0, value ->> 1 FROM json_each(?4))
    LIMIT ?5
)
