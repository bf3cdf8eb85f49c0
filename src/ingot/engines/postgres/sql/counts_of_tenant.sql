-- The jobs of the tenant that is set, by type and status: what was folded and what was not yet, in one snapshot.
SELECT d.type, d.status, sum(d.jobs)::bigint AS jobs FROM (
    SELECT type, status, jobs FROM ingot.counts WHERE tenant = $1
    UNION ALL
    SELECT type, status, jobs FROM ingot.count_deltas WHERE tenant = $1
) AS d
GROUP BY d.type, d.status
HAVING sum(d.jobs) > 0
ORDER BY d.type COLLATE "C"
