-- Those of these places (a JSON array) that are named somewhere. One moves from one table to another in one transaction.
SELECT CAST(json_group_array(p.value) AS BLOB) FROM json_each(?1) AS p
WHERE EXISTS (SELECT 1 FROM blobs AS b WHERE b.place = p.value)
    OR EXISTS (SELECT 1 FROM uploads AS u WHERE u.place = p.value)
    OR EXISTS (SELECT 1 FROM trash AS t WHERE t.place = p.value)
