-- Up to n workers that were silent for longest, as far as nothing was heard of them since an instant.
SELECT CAST(json_group_array(json_array(
    w.tenant, (SELECT t.id FROM tenants AS t WHERE t.number = w.tenant), w.id, json(w.types), w.hostname, w.version)) AS BLOB)
FROM (
    SELECT * FROM workers WHERE online = 1 AND seen_at <= ?1 ORDER BY seen_at LIMIT ?2
) AS w
