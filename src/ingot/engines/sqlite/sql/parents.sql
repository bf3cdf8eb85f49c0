-- The jobs that others wait for, and whether they have ended, found by jumping from one to the next in the index.
WITH RECURSIVE parents (number) AS (
    SELECT min(parent) FROM waits INDEXED BY waits_open WHERE open = 1
    UNION ALL
    SELECT (SELECT min(w.parent) FROM waits AS w INDEXED BY waits_open WHERE w.open = 1 AND w.parent > p.number)
    FROM parents AS p WHERE p.number IS NOT NULL
)
SELECT CAST(json_group_array(json_array(
    p.number, json(iif(s.status IN ('succeeded', 'dead', 'canceled'), 'true', 'false')))) AS BLOB)
FROM parents AS p CROSS JOIN states AS s ON s.number = p.number
