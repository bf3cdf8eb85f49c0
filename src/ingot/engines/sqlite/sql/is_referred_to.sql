-- Whether anything of any tenant refers to a blob.
SELECT EXISTS (SELECT 1 FROM keys AS k WHERE k.blob = ?1)
    OR EXISTS (SELECT 1 FROM job_files AS f WHERE f.blob = ?1)
    OR EXISTS (
        SELECT 1 FROM uploads AS u INDEXED BY uploads_by_blob
        WHERE u.blob_id = ?2 AND u.blob_id IS NOT NULL AND (u.state IN ('open', 'verifying')
            OR (u.state = 'done' AND u.key IS NULL AND (u.file IS NULL OR u.file = 'output')))
    )
