-- How many references of all tenants there are to a blob.
SELECT (SELECT count(*) FROM blobs AS b CROSS JOIN keys AS k ON k.blob = b.number WHERE b.id = ?1)
    + (SELECT count(*) FROM blobs AS b CROSS JOIN job_files AS f ON f.blob = b.number WHERE b.id = ?1)
    + (
        SELECT count(*) FROM uploads AS u INDEXED BY uploads_by_blob
        WHERE u.blob_id = ?1 AND u.blob_id IS NOT NULL AND (u.state IN ('open', 'verifying')
            OR (u.state = 'done' AND u.key IS NULL AND (u.file IS NULL OR u.file = 'output')))
    )
