SELECT CAST(json_group_array(json_object('place', place, 'multipart', multipart)) AS BLOB)
FROM (SELECT place, multipart FROM trash WHERE place > ?2 ORDER BY place LIMIT ?1) AS o
