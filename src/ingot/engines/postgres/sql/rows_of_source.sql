-- How many jobs of the tenant that is set came from a rare source, counted so far and no further.
SELECT count(*) FROM (
    SELECT FROM ingot.jobs AS j WHERE j.tenant = $1 AND j.source = $2 AND j.source <> 'manual'
    ORDER BY j.id NULLS FIRST LIMIT $3
) AS j
