-- Those of these blobs (a JSON array of the numbers of tenants and digests) that something in the tenant refers to, as
-- everybody there may know: their places in the array, numbers, sizes, and what they are said to be.
SELECT CAST(json_group_array(json_array(h.at, h.number, h.size, h.content_type)) AS BLOB)
FROM (
    SELECT w.key AS at, b.number, b.size, coalesce(
        (
            SELECT k.content_type FROM keys AS k INDEXED BY keys_by_blob
            WHERE k.blob = b.number AND k.tenant = w.value ->> 0 LIMIT 1
        ),
        (
            SELECT u.content_type FROM uploads AS u INDEXED BY uploads_by_blob
            WHERE u.blob_id = b.id AND u.tenant = w.value ->> 0 AND u.state = 'done' AND u.job_id IS NULL
                AND u.blob_id IS NOT NULL AND (u.state IN ('open', 'verifying')
                    OR (u.state = 'done' AND u.key IS NULL AND (u.file IS NULL OR u.file = 'output')))
            LIMIT 1
        ),
        (
            SELECT f.content_type FROM job_files AS f INDEXED BY job_files_by_blob
            WHERE f.blob = b.number AND f.tenant = w.value ->> 0 LIMIT 1
        )
    ) AS content_type
    FROM json_each(?1) AS w CROSS JOIN blobs AS b ON b.id = unhex(w.value ->> 1)
) AS h
WHERE h.content_type IS NOT NULL
