-- Behind a blob that was told before, as long as that has a tombstone.
SELECT CAST(json_group_array(lower(hex(b.id))) AS BLOB)
FROM (
    SELECT blob FROM tombstones
    WHERE at <= ?1 AND (at, blob) > (
        coalesce((SELECT t.at FROM blobs AS p CROSS JOIN tombstones AS t ON t.blob = p.number WHERE p.id = ?3), 0),
        coalesce((SELECT p.number FROM blobs AS p WHERE p.id = ?3), 0)
    )
    ORDER BY at, blob LIMIT ?2
) AS d CROSS JOIN blobs AS b ON b.number = d.blob
