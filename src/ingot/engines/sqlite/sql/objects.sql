-- Objects in the object store, tombstones of blobs, and the trash.

-- name: object_store_id
SELECT id FROM object_store

-- name: database_id
SELECT database FROM object_store

-- name: put_object_store
INSERT INTO object_store (only_row, id, database) VALUES (1, ?, lower(hex(randomblob(16))))
ON CONFLICT (only_row) DO UPDATE SET id = excluded.id

-- name: has_objects
SELECT EXISTS (SELECT 1 FROM blobs WHERE place IS NOT NULL)
    OR EXISTS (SELECT 1 FROM uploads WHERE place IS NOT NULL) OR EXISTS (SELECT 1 FROM trash)

-- name: known_storage_keys
-- The storage keys of a JSON array that occur in a row. A storage key moves between the tables in one transaction.
SELECT CAST(json_group_array(item.value) AS BLOB) FROM json_each(?1) AS item
WHERE EXISTS (SELECT 1 FROM blobs AS b WHERE b.place = item.value)
    OR EXISTS (SELECT 1 FROM uploads AS u WHERE u.place = item.value)
    OR EXISTS (SELECT 1 FROM trash AS t WHERE t.place = item.value)

-- name: put_tombstones
-- The newest tombstone of a blob counts. The row of VALUES is repeated for each blob.
INSERT INTO tombstones (blob, at) VALUES (?, ?) ON CONFLICT (blob) DO UPDATE SET at = excluded.at

-- name: tombstone_of_blob
SELECT at FROM tombstones WHERE blob = ?

-- name: tombstoned_blobs
-- Blobs with a tombstone up to ?1, after the blob ?3, or from the beginning if that has no tombstone.
SELECT CAST(json_group_array(lower(hex(b.id))) AS BLOB)
FROM (
    SELECT blob FROM tombstones
    WHERE at <= ?1 AND (at, blob) > (
        coalesce((SELECT t.at FROM blobs AS p CROSS JOIN tombstones AS t ON t.blob = p.number WHERE p.id = ?3), 0),
        coalesce((SELECT p.number FROM blobs AS p WHERE p.id = ?3), 0)
    )
    ORDER BY at, blob LIMIT ?2
) AS d CROSS JOIN blobs AS b ON b.number = d.blob

-- name: remove_tombstone
DELETE FROM tombstones WHERE blob = ?

-- name: insert_trash
-- The row of VALUES is repeated for each object.
INSERT INTO trash (place, multipart) VALUES (?, ?) ON CONFLICT (place) DO NOTHING

-- name: page_of_trash
SELECT CAST(json_group_array(json_object('storage_key', place, 'multipart', multipart)) AS BLOB)
FROM (SELECT place, multipart FROM trash WHERE place > ?2 ORDER BY place LIMIT ?1) AS o

-- name: remove_trash
DELETE FROM trash WHERE place IN (SELECT value FROM json_each(?))

-- name: reusable_bytes
-- Free pages of the file. SQLite uses them before the file grows.
SELECT CAST(json_array((SELECT freelist_count FROM pragma_freelist_count) * (SELECT page_size FROM pragma_page_size)) AS BLOB)
