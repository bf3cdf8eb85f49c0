-- Ids of a tenant's jobs, newest first, below one id. Looks at no more than a bounded number of rows; the answer is
-- the last id looked at, how many were looked at, and the ids that fit the filter, all as one JSON text.
SELECT CAST(json_object(
    'last', min(id), 'seen', count(*), 'ids', json_group_array(id ORDER BY id DESC) FILTER (
        WHERE (?3 IS NULL OR status = ?3) AND (?4 IS NULL OR type = ?4))) AS BLOB)
FROM (
    SELECT id, status, type FROM states INDEXED BY states_by_tenant
    WHERE tenant = ?1 AND id < ?2
    ORDER BY id DESC
    LIMIT ?5
)
