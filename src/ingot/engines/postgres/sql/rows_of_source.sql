-- How many jobs of the tenant that is set came from a rare source, counted so far and no further.
SELECT count(*) FROM (
    SELECT FROM ingot.jobs AS j
    WHERE j.tenant = $1 AND j.source <> 'manual' AND (j.source, j.id) >= ($2, '00000000-0000-0000-0000-000000000000')
        AND (j.source, j.id) <= ($2, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
    ORDER BY j.source, j.id LIMIT $3
) AS j
