-- Jobs of the tenant that is set, newest first, below one id: those of a bounded number that fit, and how far we looked.
WITH looked AS MATERIALIZED (
    SELECT j.id, j.type FROM ingot.jobs AS j WHERE j.tenant = $1 AND j.id < $2 ORDER BY j.id DESC LIMIT $5
)
SELECT (SELECT min(id::text) FROM looked) AS last, (SELECT count(*) FROM looked) AS seen, ARRAY(
    SELECT l.id::text FROM looked AS l CROSS JOIN LATERAL (SELECT s.status FROM ingot.job_rows AS s WHERE s.id = l.id) AS s
    WHERE ($3::text IS NULL OR s.status = $3) AND ($4::text IS NULL OR l.type = $4)
    ORDER BY l.id DESC
) AS fit
