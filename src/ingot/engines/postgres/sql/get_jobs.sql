-- These jobs of the tenant that is set, in no order.
SELECT s.* FROM unnest($1::uuid[]) AS w (id) CROSS JOIN LATERAL (SELECT * FROM ingot.job_rows AS s WHERE s.id = w.id) AS s
