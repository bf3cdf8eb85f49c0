-- Jobs that one still waits for, and how they stand; no more than some.
SELECT w.parent::text AS parent, s.status FROM (
    SELECT w.parent FROM ingot.waits AS w WHERE w.job = $1 AND w.open ORDER BY w.parent LIMIT 100
) AS w
CROSS JOIN LATERAL (SELECT s.status FROM ingot.job_rows AS s WHERE s.id = w.parent) AS s
