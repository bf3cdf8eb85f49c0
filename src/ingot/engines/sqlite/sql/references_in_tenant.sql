-- Some of what refers to a blob in a tenant and is in sight: not what an attempt has made that still runs. Names are in sight
-- when they begin with one of ?5, or those of types with one of ?7, in whole segments; without these, all are.
SELECT CAST(json_group_array(json_object(
    'kind', r.kind, 'name', r.name, 'job_id', r.job_id, 'job_type', r.job_type, 'since', r.since)) AS BLOB)
FROM (
    SELECT * FROM (
        SELECT 'key' AS kind, k.key AS name, NULL AS job_id, NULL AS job_type, k.uploaded_at AS since
        FROM keys AS k INDEXED BY keys_by_blob WHERE k.blob = ?1 AND k.tenant = ?3
            AND (?5 IS NULL OR EXISTS (
                SELECT 1 FROM json_each(?5) AS p
                WHERE k.key = p.value OR substr(k.key, 1, length(p.value) + 1) IN (p.value || '/', p.value || '.')
            ))
        LIMIT ?4
    )
    UNION ALL
    SELECT * FROM (
        SELECT 'upload', u.id, NULL, NULL, u.done_at FROM uploads AS u INDEXED BY uploads_by_blob
        WHERE ?6 AND u.blob_id = ?2 AND u.tenant = ?3 AND u.state = 'done' AND u.job_id IS NULL
            AND u.blob_id IS NOT NULL AND (u.state IN ('open', 'verifying')
            OR (u.state = 'done' AND u.key IS NULL AND (u.file IS NULL OR u.file = 'output')))
        LIMIT ?4
    )
    UNION ALL
    SELECT * FROM (
        SELECT f.kind, f.name, s.id, s.type, f.since
        FROM job_files AS f INDEXED BY job_files_by_blob CROSS JOIN states AS s ON s.number = f.job
        WHERE f.blob = ?1 AND f.tenant = ?3
            AND (?7 IS NULL OR EXISTS (
                SELECT 1 FROM json_each(?7) AS p
                WHERE s.type = p.value OR substr(s.type, 1, length(p.value) + 1) IN (p.value || '/', p.value || '.')
            ))
        LIMIT ?4
    )
    LIMIT ?4
) AS r
