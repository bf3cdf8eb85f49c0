SELECT CAST(json_group_array(key) AS BLOB) FROM (SELECT key FROM keys WHERE tenant = ?1 LIMIT ?2)
