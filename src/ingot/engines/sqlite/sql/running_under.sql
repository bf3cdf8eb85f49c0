-- How many jobs of a tenant run, of one type and key or of any, and some of them.
SELECT CAST(json_array(count(*), json(coalesce(json_group_array(id) FILTER (WHERE place <= 10), '[]'))) AS BLOB)
FROM (
    SELECT id, row_number() OVER () AS place FROM states INDEXED BY states_leased
    WHERE status = 'running' AND tenant = ?1 AND (?2 IS NULL OR type = ?2) AND (?3 IS NULL OR limit_key = ?3)
)
