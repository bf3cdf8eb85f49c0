-- How many jobs of the tenant that is set have a tag, counted so far and no further.
SELECT count(*) FROM (
    SELECT FROM ingot.tags AS g
    WHERE (g.tag, g.tenant, g.job) >= ($2, $1, '00000000-0000-0000-0000-000000000000')
        AND (g.tag, g.tenant, g.job) <= ($2, $1, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
    ORDER BY g.tag, g.tenant, g.job LIMIT $3
) AS g
