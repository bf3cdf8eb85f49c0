-- Where the logs of these attempts (a JSON array of pairs of job number and fence) end.
SELECT CAST(json_group_array(json_array(w.value ->> 0, w.value ->> 1, coalesce((
    SELECT start + size FROM logs WHERE job = w.value ->> 0 AND fence = w.value ->> 1 ORDER BY start DESC LIMIT 1
), 0))) AS BLOB)
FROM json_each(?) AS w
