-- When up to n batches of a tenant and type finished, the longest ago first, and how many jobs each holds.
SELECT CAST(json_group_array(json_array(batch, size)) AS BLOB)
FROM (
    SELECT batch, size FROM endings INDEXED BY endings_in_order
    WHERE tenant = ? AND type = ? AND finished_at <= ?
    ORDER BY finished_at, batch
    LIMIT ?
)
