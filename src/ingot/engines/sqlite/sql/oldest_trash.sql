SELECT CAST(json_group_array(json_object('place', place, 'multipart', multipart)) AS BLOB)
FROM (SELECT place, multipart FROM trash ORDER BY number LIMIT ?1) AS o
