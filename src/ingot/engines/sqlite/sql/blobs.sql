-- Blobs, inline bytes, part checksums, and the time of the last scrub.

-- name: last_blob_number
SELECT coalesce(max(number), 0) FROM blobs

-- name: number_of_blob
SELECT number FROM blobs WHERE holder = ? AND id = ?

-- name: blobs_by_id
-- The stored ones of these blobs (a JSON array of tenant numbers and blob IDs), with the owner that deleted them.
SELECT CAST(json_group_array(json_array(
    b.number, t.id, item.value ->> 1, b.size, b.place, json(iif(b.damaged, 'true', 'false')), b.sent_until,
    (SELECT s.owner FROM tombstones AS s WHERE s.blob = b.number))) AS BLOB)
FROM json_each(?1) AS item CROSS JOIN blobs AS b ON b.holder = item.value ->> 0 AND b.id = unhex(item.value ->> 1)
CROSS JOIN tenants AS t ON t.number = b.holder

-- name: blob_to_collect
SELECT CAST(json_array(number, size, place, sent_until) AS BLOB) FROM blobs WHERE holder = ?1 AND id = ?2

-- name: referenced_blobs
-- Those of these blobs (a JSON array of tenant numbers and blob IDs) that have a reference in the tenant which is
-- visible to all of its callers: index in the array, number, size and content type.
SELECT CAST(json_group_array(json_array(r.position, r.number, r.size, r.content_type)) AS BLOB)
FROM (
    SELECT item.key AS position, b.number, b.size, coalesce(
        (
            SELECT k.content_type FROM keys AS k INDEXED BY keys_by_blob
            WHERE k.blob = b.number AND k.tenant = item.value ->> 0 LIMIT 1
        ),
        (
            SELECT u.content_type FROM uploads AS u INDEXED BY uploads_by_blob
            WHERE u.blob_id = b.id AND u.tenant = item.value ->> 0 AND u.state = 'done' AND u.job_id IS NULL
                AND u.blob_id IS NOT NULL AND (u.state IN ('open', 'verifying')
                    OR (u.state = 'done' AND u.key IS NULL AND (u.file IS NULL OR u.file = 'output')))
            LIMIT 1
        ),
        (
            SELECT f.content_type FROM job_files AS f INDEXED BY job_files_by_blob
            WHERE f.blob = b.number AND f.tenant = item.value ->> 0 LIMIT 1
        )
    ) AS content_type
    FROM json_each(?1) AS item
    CROSS JOIN blobs AS b ON b.holder = item.value ->> 0 AND b.id = unhex(item.value ->> 1)
) AS r
WHERE r.content_type IS NOT NULL

-- name: insert_blobs
-- The row of VALUES is repeated for each blob.
INSERT INTO blobs (number, holder, id, sha256, size, place, damaged, verified_at, etag, sent_until)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: insert_blob_bytes
INSERT INTO blob_bytes (blob, bytes) VALUES (?, ?)

-- name: insert_blob_checks
INSERT INTO blob_checks (blob, checks) VALUES (?, ?)

-- name: content_of_blob
-- Bytes are returned unchanged, so the result is not JSON.
SELECT lower(hex(b.id)), lower(hex(b.sha256)), b.size, b.place, b.damaged,
    (SELECT y.bytes FROM blob_bytes AS y WHERE y.blob = b.number),
    (SELECT c.checks FROM blob_checks AS c WHERE c.blob = b.number),
    (SELECT t.id FROM tenants AS t WHERE t.number = b.holder), b.etag
FROM blobs AS b WHERE b.holder = ?1 AND b.id = ?2

-- name: references_in_tenant
-- Up to ?4 references to a blob in a tenant that the caller may see. Files of an attempt that still runs are not
-- included. A caller sees names that begin with one of ?5, and files of job types that begin with one of ?7, in whole
-- segments; NULL allows all. It also sees everything with the owner ?8, and the files of the job ?9.
SELECT CAST(json_group_array(json_object(
    'kind', r.kind, 'name', r.name, 'job_id', r.job_id, 'job_type', r.job_type, 'since', r.since)) AS BLOB)
FROM (
    SELECT * FROM (
        SELECT 'key' AS kind, k.key AS name, NULL AS job_id, NULL AS job_type, k.uploaded_at AS since
        FROM keys AS k INDEXED BY keys_by_blob WHERE k.blob = ?1 AND k.tenant = ?3
            AND (?5 IS NULL OR EXISTS (
                SELECT 1 FROM json_each(?5) AS p
                WHERE k.key = p.value OR substr(k.key, 1, length(p.value) + 1) IN (p.value || '/', p.value || '.')
            ) OR k.owner = ?8)
        LIMIT ?4
    )
    UNION ALL
    SELECT * FROM (
        SELECT 'upload', u.id, NULL, NULL, u.done_at FROM uploads AS u INDEXED BY uploads_by_blob
        WHERE (?6 OR u.owner = ?8) AND u.blob_id = ?2 AND u.tenant = ?3 AND u.state = 'done' AND u.job_id IS NULL
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
            ) OR f.owner = ?8 OR s.id = ?9)
        LIMIT ?4
    )
    LIMIT ?4
) AS r

-- name: is_blob_referenced
-- Whether a blob has a reference, or an unfinished upload that announced it (blob ID ?2 of the holder ?3).
SELECT EXISTS (SELECT 1 FROM keys AS k WHERE k.blob = ?1)
    OR EXISTS (SELECT 1 FROM job_files AS f WHERE f.blob = ?1)
    OR EXISTS (
        SELECT 1 FROM uploads AS u INDEXED BY uploads_by_blob
        WHERE u.blob_id = ?2 AND u.tenant = ?3 AND u.blob_id IS NOT NULL AND (u.state IN ('open', 'verifying')
            OR (u.state = 'done' AND u.key IS NULL AND (u.file IS NULL OR u.file = 'output')))
    )

-- name: deleted_blobs
-- Those of these blobs (a JSON array of numbers) without a tombstone and a reference: number, tenant and size. An unfinished
-- upload that announced a blob is no reference here: it would keep bytes that count against no quota.
SELECT CAST(json_group_array(json_array(b.number, t.id, b.size)) AS BLOB)
FROM json_each(?1) AS item CROSS JOIN blobs AS b ON b.number = item.value
LEFT JOIN tenants AS t ON t.number = b.holder
WHERE NOT EXISTS (SELECT 1 FROM tombstones AS s WHERE s.blob = b.number)
    AND NOT EXISTS (SELECT 1 FROM keys AS k WHERE k.blob = b.number)
    AND NOT EXISTS (SELECT 1 FROM job_files AS f WHERE f.blob = b.number)
    AND NOT EXISTS (
        SELECT 1 FROM uploads AS u INDEXED BY uploads_by_blob
        WHERE u.blob_id = b.id AND u.tenant = b.holder AND u.blob_id IS NOT NULL
            AND (u.state IN ('open', 'verifying')
                OR (u.state = 'done' AND u.key IS NULL AND (u.file IS NULL OR u.file = 'output')))
            AND u.state = 'done'
    )

-- name: has_one_reference
-- Whether at most one key, job file or done upload refers to the blob ?1 with the ID ?2 of the holder ?3.
SELECT count(*) < 2 FROM (
    SELECT 1 FROM keys AS k WHERE k.blob = ?1
    UNION ALL
    SELECT 1 FROM job_files AS f WHERE f.blob = ?1
    UNION ALL
    SELECT 1 FROM uploads AS u INDEXED BY uploads_by_blob
    WHERE u.blob_id = ?2 AND u.tenant = ?3 AND u.blob_id IS NOT NULL
        AND (u.state IN ('open', 'verifying')
            OR (u.state = 'done' AND u.key IS NULL AND (u.file IS NULL OR u.file = 'output')))
        AND u.state = 'done'
    LIMIT 2
)

-- name: is_object_shared
-- Whether another blob than ?2 has the same object: tenants shared objects until version 18 of the schema.
SELECT EXISTS (SELECT 1 FROM blobs WHERE place = ?1 AND number <> ?2)

-- name: disown_blobs
UPDATE blobs SET holder = -number WHERE number IN (SELECT number FROM blobs WHERE holder = ?1 LIMIT ?2)

-- name: contents_to_scrub
-- Bytes are returned unchanged, so the result is not JSON.
SELECT lower(hex(b.id)), lower(hex(b.sha256)), b.size, b.place, b.damaged,
    (SELECT y.bytes FROM blob_bytes AS y WHERE y.blob = b.number),
    (SELECT c.checks FROM blob_checks AS c WHERE c.blob = b.number),
    (SELECT t.id FROM tenants AS t WHERE t.number = b.holder), b.etag
FROM (SELECT * FROM blobs WHERE holder > 0 AND verified_at < ?1 ORDER BY verified_at LIMIT ?2) AS b

-- name: record_scrub
-- Changes only blobs that still have the storage key that was read (a JSON array of tenant numbers, blob IDs and storage
-- keys).
UPDATE blobs SET damaged = ?2, verified_at = ?3
FROM json_each(?1) AS item
WHERE blobs.holder = item.value ->> 0 AND blobs.id = unhex(item.value ->> 1) AND blobs.place IS (item.value ->> 2)

-- name: repair_blob
UPDATE blobs SET place = ?2, damaged = 0, verified_at = ?3, etag = ?4, sent_until = ?5 WHERE number = ?1

-- name: remove_blob
DELETE FROM blobs WHERE number = ?

-- name: remove_blob_bytes
DELETE FROM blob_bytes WHERE blob = ?

-- name: remove_blob_checks
DELETE FROM blob_checks WHERE blob = ?

-- name: add_blob_totals
UPDATE blob_totals SET blobs = blobs + ?, bytes = bytes + ?, deleted = deleted + ?

-- name: blob_metrics
-- Rows without a stored total are counted up to the limit.
SELECT CAST(json_object(
    'blobs', t.blobs, 'bytes', t.bytes, 'deleted_bytes', t.deleted, 'freed_from', NULL, 'freed_by', NULL,
    'damaged', (SELECT count(*) FROM (SELECT 1 FROM blobs INDEXED BY blobs_damaged WHERE damaged = 1 LIMIT ?1)),
    'tombstones', (SELECT count(*) FROM (SELECT 1 FROM tombstones LIMIT ?1)),
    'trash', (SELECT count(*) FROM (SELECT 1 FROM trash LIMIT ?1)),
    'uploads', (SELECT count(*) FROM (SELECT 1 FROM uploads LIMIT ?1)),
    'verified_before', (SELECT min(verified_at) FROM blobs WHERE holder > 0)) AS BLOB)
FROM blob_totals AS t
