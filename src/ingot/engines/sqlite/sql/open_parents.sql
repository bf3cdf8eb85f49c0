-- Jobs that one still waits for, and how they stand; no more than some.
SELECT CAST(json_group_array(json_array(id, status)) AS BLOB)
FROM (
    SELECT p.id, p.status FROM waits AS w INDEXED BY waits_open_of_job JOIN states AS p ON p.number = w.parent
    WHERE w.job = ? AND w.open = 1 ORDER BY p.id LIMIT 100
)
