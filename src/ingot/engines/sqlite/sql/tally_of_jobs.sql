-- How many of these jobs (a JSON array of numbers) there are in each status.
SELECT CAST(json_group_object(status, jobs) AS BLOB) FROM (
    SELECT s.status, count(*) AS jobs FROM json_each(?) AS w CROSS JOIN states AS s ON s.number = w.value
    GROUP BY s.status
)
