-- Up to n workers that are offline and were not heard of since an instant.
DELETE FROM workers WHERE (tenant, id) IN (
    SELECT tenant, id FROM workers WHERE online = 0 AND seen_at <= ?1 ORDER BY seen_at LIMIT ?2
)
RETURNING 1
