-- Those of these jobs (a JSON array of numbers) that are of this tenant and type and have been finished since then.
SELECT CAST(json_group_array(json_array(number, status, finished_at)) AS BLOB)
FROM (
    SELECT DISTINCT s.number, s.status, s.finished_at FROM json_each(?) AS w CROSS JOIN states AS s ON s.number = w.value
    WHERE s.tenant = ? AND s.type = ? AND s.finished_at <= ?
)
