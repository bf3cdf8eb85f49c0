-- Objects in the object store, tombstones of blobs, and the trash.

-- name: object_store_id
SELECT id FROM object_store

-- name: database_id
SELECT database FROM object_store

-- name: put_object_store
INSERT INTO object_store (only_row, id, database) VALUES (1, ?, lower(hex(randomblob(16))))
ON CONFLICT (only_row) DO UPDATE SET id = excluded.id

-- name: put_grace
UPDATE object_store SET grace = ?

-- name: deleted_until
-- When the bytes that a tenant has deleted will be free, the first ones and all of them: in the grace ?2 of deleted blobs,
-- and when clients can no longer send the objects.
SELECT CAST(json_array(
    (SELECT min(at) + ?2 FROM tombstones WHERE holder = ?1), (SELECT max(at) + ?2 FROM tombstones WHERE holder = ?1),
    (SELECT min(sent_until) FROM trash WHERE holder = ?1), (SELECT max(sent_until) FROM trash WHERE holder = ?1)) AS BLOB)

-- name: all_deleted_until
-- The same for the deleted bytes of all tenants, in the grace ?1.
SELECT CAST(json_array(
    (SELECT min(at) + ?1 FROM tombstones), (SELECT max(at) + ?1 FROM tombstones),
    (SELECT min(sent_until) FROM trash), (SELECT max(sent_until) FROM trash)) AS BLOB)

-- name: grace
SELECT grace FROM object_store

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
-- The row of VALUES is repeated for each blob.
INSERT INTO tombstones (blob, at, holder, owner, size) VALUES (?, ?, ?, ?, ?)

-- name: tombstone_of_blob
SELECT CAST(json_array(s.at, t.id, s.owner, s.size) AS BLOB)
FROM tombstones AS s LEFT JOIN tenants AS t ON t.number = s.holder WHERE s.blob = ?

-- name: disown_tombstones
UPDATE tombstones SET holder = NULL WHERE blob IN (SELECT blob FROM tombstones WHERE holder = ?1 LIMIT ?2)

-- name: disown_trash
UPDATE trash SET holder = NULL WHERE number IN (SELECT number FROM trash WHERE holder = ?1 LIMIT ?2)

-- name: tombstoned_blobs
-- Blobs with a tombstone up to ?1, after the blob ?4 of the holder ?3, or from the beginning if that has no tombstone.
SELECT CAST(json_group_array(json_object(
    'holder', coalesce((SELECT t.id FROM tenants AS t WHERE t.number = b.holder), CAST(b.holder AS TEXT)),
    'blob_id', lower(hex(b.id)))) AS BLOB)
FROM (
    SELECT blob FROM tombstones
    WHERE at <= ?1 AND (at, blob) > (
        coalesce((
            SELECT t.at FROM blobs AS p CROSS JOIN tombstones AS t ON t.blob = p.number WHERE p.holder = ?3 AND p.id = ?4
        ), 0),
        coalesce((SELECT p.number FROM blobs AS p WHERE p.holder = ?3 AND p.id = ?4), 0)
    )
    ORDER BY at, blob LIMIT ?2
) AS d CROSS JOIN blobs AS b ON b.number = d.blob

-- name: remove_tombstone
DELETE FROM tombstones WHERE blob = ?

-- name: insert_trash
-- The row of VALUES is repeated for each object.
INSERT INTO trash (place, multipart, holder, owner, size, sent_until) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (place) DO NOTHING

-- name: page_of_trash
-- Objects to delete now (?3).
SELECT CAST(json_group_array(json_object('storage_key', place, 'multipart', multipart)) AS BLOB)
FROM (SELECT place, multipart FROM trash WHERE place > ?2 AND due_at <= ?3 ORDER BY place LIMIT ?1) AS o

-- name: postpone_trash
-- Delete these objects again when clients can no longer send them.
UPDATE trash SET due_at = sent_until WHERE place IN (SELECT value FROM json_each(?)) AND sent_until > due_at

-- name: finished_trash
-- Those of these objects that no client could send after they were deleted, up to now (?2): number, tenant, owner and size.
SELECT CAST(json_group_array(json_array(o.number, t.id, o.owner, o.size)) AS BLOB)
FROM json_each(?1) AS item CROSS JOIN trash AS o ON o.place = item.value
LEFT JOIN tenants AS t ON t.number = o.holder
WHERE o.sent_until <= o.due_at AND o.due_at <= ?2

-- name: remove_trash
DELETE FROM trash WHERE number IN (SELECT value FROM json_each(?))

-- name: reusable_bytes
-- Free pages of the file. SQLite uses them before the file grows.
SELECT CAST(json_array((SELECT freelist_count FROM pragma_freelist_count) * (SELECT page_size FROM pragma_page_size)) AS BLOB)
