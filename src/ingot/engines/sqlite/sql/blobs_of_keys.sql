-- The blobs of the first keys of a tenant, one for each.
SELECT CAST(json_group_array(blob) AS BLOB) FROM (SELECT blob FROM keys WHERE tenant = ?1 ORDER BY key LIMIT ?2)
