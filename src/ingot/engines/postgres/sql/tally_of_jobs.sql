-- How many of these jobs of the tenant that is set there are in each status. Each is looked up by itself: joined, all jobs
-- of the tenant could seem few enough to be read.
SELECT d.status, count(*) AS jobs FROM (
    SELECT (SELECT s.status FROM ingot.job_rows AS s WHERE s.id = w.id) AS status FROM unnest($1::uuid[]) AS w (id) OFFSET 0
) AS d
WHERE d.status IS NOT NULL
GROUP BY d.status
