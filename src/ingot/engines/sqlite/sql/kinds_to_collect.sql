-- The tenants and types that have finished jobs which are not kept for ever, how long they are kept, and whether an
-- entry stays; of one tenant (its number) or of all. Found by jumping from type to type in the index.
WITH RECURSIVE kinds (tenant, type) AS (
    SELECT * FROM (
        SELECT tenant, type FROM endings INDEXED BY endings_in_order
        WHERE tenant BETWEEN coalesce(?1, 0) AND coalesce(?1, 0x7fffffffffffffff) AND (
            EXISTS (SELECT 1 FROM definitions WHERE definition ->> 'retention_seconds' IS NOT NULL)
            OR EXISTS (SELECT 1 FROM tenants WHERE limits ->> 'retention_seconds' IS NOT NULL)
        )
        ORDER BY tenant, type LIMIT 1
    )
    UNION ALL
    SELECT n.tenant, n.type
    FROM kinds AS k CROSS JOIN endings AS n ON n.batch = coalesce(
        (
            SELECT batch FROM endings INDEXED BY endings_in_order
            WHERE tenant = k.tenant AND type > k.type
            ORDER BY type LIMIT 1
        ),
        (
            SELECT batch FROM endings INDEXED BY endings_in_order
            WHERE tenant > k.tenant AND ?1 IS NULL
            ORDER BY tenant, type LIMIT 1
        )
    )
)
SELECT CAST(json_group_array(json_array(id, number, type, seconds, json(iif(keeps, 'true', 'false')))) AS BLOB)
FROM (
    SELECT t.id, t.number, k.type, d.definition ->> 'keep_history' AS keeps,
        coalesce(d.definition ->> 'retention_seconds', t.limits ->> 'retention_seconds') AS seconds
    FROM kinds AS k CROSS JOIN tenants AS t ON t.number = k.tenant
    LEFT JOIN definitions AS d ON d.type = k.type AND d.tenant = (
        SELECT max(o.tenant) FROM definitions AS o WHERE o.tenant IN ('', t.id) AND o.type = k.type
    )
)
WHERE seconds IS NOT NULL
