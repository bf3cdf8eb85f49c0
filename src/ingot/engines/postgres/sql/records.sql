-- Named small objects, by kind and tenant; those of the all-zero tenant are shared.

-- name: get_record
SELECT name, version, body, created_at, created_by, updated_at, updated_by FROM ingot.records
WHERE kind = $1 AND tenant = $2 AND name = $3

-- name: list_records
SELECT name, version, body, created_at, created_by, updated_at, updated_by FROM ingot.records
WHERE kind = $1 AND tenant = $2 AND name >= $3 AND name < $3 || chr(1114111) AND name > $4
ORDER BY name LIMIT $5
