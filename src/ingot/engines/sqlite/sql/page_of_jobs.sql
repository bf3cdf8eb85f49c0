-- A tenant's jobs, newest first, below one number. Looks at no more than a bounded number of rows; the answer is
-- the last number looked at, how many were looked at, and the numbers that fit the filter, all as one JSON text.
SELECT CAST(json_object(
    'last', min(number), 'seen', count(*), 'fit', json_group_array(number ORDER BY number DESC) FILTER (
        WHERE (?3 IS NULL OR status = ?3) AND (?4 IS NULL OR type = ?4))) AS BLOB)
FROM (
    SELECT number, status, type FROM states INDEXED BY states_by_tenant
    WHERE tenant = (SELECT number FROM tenants WHERE id = ?1) AND number < ?2
    ORDER BY number DESC
    LIMIT ?5
)
