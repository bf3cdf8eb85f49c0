-- How many jobs of the tenant that is set have a tag, counted so far and no further.
SELECT count(*) FROM (
    SELECT FROM ingot.tags AS g WHERE g.tag = $2 AND g.tenant = $1 ORDER BY g.job NULLS FIRST LIMIT $3
) AS g
