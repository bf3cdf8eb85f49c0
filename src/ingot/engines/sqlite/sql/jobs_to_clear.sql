-- Up to n jobs of a tenant that do not run: first those that wait, then those that are finished.
SELECT CAST(json_group_array(number) AS BLOB) FROM (
    SELECT number FROM (
        SELECT number FROM states INDEXED BY states_live
        WHERE tenant = ?1 AND finished_at IS NULL AND status <> 'running' LIMIT ?2
    )
    UNION ALL
    SELECT number FROM (
        SELECT number FROM states INDEXED BY states_finished WHERE tenant = ?1 AND finished_at IS NOT NULL LIMIT ?2
    )
    LIMIT ?2
)
