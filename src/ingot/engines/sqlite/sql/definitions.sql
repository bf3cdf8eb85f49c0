-- Definitions of types, and types that are paused.

-- name: all_definitions
SELECT CAST(json_group_array(json(definition)) AS BLOB)
FROM (SELECT * FROM definitions ORDER BY type, tenant)

-- name: definitions_of_type
-- The definition that holds: the tenant's own before the one for all.
SELECT CAST(json(definition) AS BLOB) FROM definitions WHERE type = ? AND tenant IN ('', ?) ORDER BY tenant DESC LIMIT 1

-- name: definitions_of_tenant
-- A tenant's own definitions and those for all, by type.
SELECT CAST(json_group_array(json(definition)) AS BLOB)
FROM (SELECT * FROM definitions WHERE tenant IN ('', ?) ORDER BY type, tenant)

-- name: put_definition
INSERT INTO definitions (tenant, type, definition) VALUES (?, ?, ?)
ON CONFLICT (tenant, type) DO UPDATE SET definition = excluded.definition

-- name: remove_definitions
DELETE FROM definitions WHERE tenant = (SELECT id FROM tenants WHERE number = ?1)

-- name: all_pauses
SELECT CAST(json_group_array(json_array(t.id, p.type, p.since, p."by")) AS BLOB)
FROM pauses AS p JOIN tenants AS t ON t.number = p.tenant

-- name: pauses_of_tenant
SELECT CAST(json_group_array(json_array(type, since, "by")) AS BLOB)
FROM (SELECT * FROM pauses WHERE tenant = (SELECT number FROM tenants WHERE id = ?) ORDER BY type)

-- name: insert_pauses
INSERT INTO pauses (tenant, type, since, "by") VALUES (?, ?, ?, ?)

-- name: delete_pause
DELETE FROM pauses WHERE tenant = ? AND type = ?

-- name: remove_pauses
DELETE FROM pauses WHERE tenant = ?1
