-- What is here of these blobs (a JSON array of digests).
SELECT CAST(json_group_array(json_array(
    b.number, w.value, b.size, b.place, json(iif(b.damaged, 'true', 'false')))) AS BLOB)
FROM json_each(?1) AS w CROSS JOIN blobs AS b ON b.id = unhex(w.value)
