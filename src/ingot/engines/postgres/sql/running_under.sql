-- How many leases the tenant that is set has, of one type and key or of any, and some of the jobs.
SELECT count(*) AS running, (array_agg(l.id::text))[1:10] AS holders FROM ingot.leases AS l
WHERE l.tenant = $1 AND ($2::text IS NULL OR l.type = $2) AND ($3::text IS NULL OR l.limit_key = $3)
