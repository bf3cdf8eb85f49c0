-- How many of these jobs of the tenant that is set there are in each status.
SELECT s.status, count(*) AS jobs
FROM unnest($1::uuid[]) AS w (id) CROSS JOIN LATERAL (SELECT s.status FROM ingot.job_rows AS s WHERE s.id = w.id) AS s
GROUP BY s.status
