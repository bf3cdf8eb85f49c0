-- These edges (a JSON array of job and parent) hold nobody back any more.
UPDATE waits SET open = 0
FROM (SELECT value ->> 0 AS job, value ->> 1 AS parent FROM json_each(?)) AS e
WHERE waits.job = e.job AND waits.parent = e.parent
