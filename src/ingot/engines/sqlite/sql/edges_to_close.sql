-- Up to n open edges to these jobs (a JSON array of numbers), as far as these have ended: who waits, for whom, and
-- whether it must not run any more.
SELECT CAST(json_group_array(json_array(job, parent, json(iif(doomed, 'true', 'false')))) AS BLOB)
FROM (
    SELECT w.job, w.parent, p.status <> 'succeeded' AND NOT w.runs_anyway AS doomed
    FROM json_each(?) AS e
    CROSS JOIN states AS p ON p.number = e.value AND p.status IN ('succeeded', 'dead', 'canceled')
    CROSS JOIN waits AS w INDEXED BY waits_open ON w.parent = p.number AND w.open = 1
    LIMIT ?
)
