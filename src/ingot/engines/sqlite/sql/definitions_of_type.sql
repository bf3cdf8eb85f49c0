-- The definition that holds: the tenant's own before the one for all.
SELECT CAST(json(definition) AS BLOB) FROM definitions WHERE type = ? AND tenant IN ('', ?) ORDER BY tenant DESC LIMIT 1
