-- Which unfinished jobs hold these keys: pairs of the asked-for position and the holder.
SELECT CAST(json_group_array(json_array(w.key, s.id)) AS BLOB)
FROM json_each(?) AS w CROSS JOIN states AS s INDEXED BY states_dedupe
    ON s.tenant = w.value ->> 0 AND s.dedupe_key = w.value ->> 1
    AND s.dedupe_key IS NOT NULL AND s.status IN ('blocked', 'queued', 'running')
