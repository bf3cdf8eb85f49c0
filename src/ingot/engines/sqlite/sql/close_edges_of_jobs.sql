-- These jobs (a JSON array of numbers) wait for nobody any more.
UPDATE waits SET open = 0
WHERE (job, parent) IN (
    SELECT w.job, w.parent FROM json_each(?) AS e CROSS JOIN waits AS w INDEXED BY waits_open_of_job
        ON w.job = e.value AND w.open = 1
)
