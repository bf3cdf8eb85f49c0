-- How many ready jobs of its lane go before one, up to a bound.
SELECT count(*) FROM (
    SELECT FROM ingot.ready AS r
    WHERE r.type = $1 AND r.tenant = $2 AND r.limit_key = $3 AND (r.priority, r.run_at, r.id) < ($4, $5, $6)
    LIMIT $7
) AS ahead
