SELECT CAST(json_group_array(json_array(type, status, jobs) ORDER BY type) AS BLOB) FROM counts WHERE tenant = ? AND jobs > 0
