SELECT CAST(json_group_array(lower(hex(b.id))) AS BLOB)
FROM (SELECT blob FROM tombstones WHERE at <= ?1 ORDER BY at, blob LIMIT ?2) AS d CROSS JOIN blobs AS b ON b.number = d.blob
