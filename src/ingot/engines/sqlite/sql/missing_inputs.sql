-- The inputs of a job that did not come.
SELECT CAST(json_group_array(e.key ORDER BY e.key) AS BLOB)
FROM jobs AS j, json_each(j.inputs) AS e WHERE j.number = ? AND e.type = 'null'
