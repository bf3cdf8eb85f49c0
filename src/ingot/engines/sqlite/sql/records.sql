-- Records: small named objects by kind and tenant. Those of the tenant '' are shared by all tenants.

-- name: get_record
SELECT name, version, body, created_at, created_by, updated_at, updated_by, sealed FROM records
WHERE kind = ?1 AND tenant = ?2 AND name = ?3

-- name: list_records
SELECT name, version, body, created_at, created_by, updated_at, updated_by FROM records
WHERE kind = ?1 AND tenant = ?2 AND name >= ?3 AND name < ?3 || char(1114111) AND name > ?4
ORDER BY name LIMIT ?5

-- name: count_records
SELECT count(*) FROM records WHERE kind = ? AND tenant = ?

-- name: put_record
INSERT INTO records (kind, tenant, name, version, body, sealed, created_at, created_by, updated_at, updated_by)
VALUES (?1, ?2, ?3, 1, ?4, ?5, ?6, ?7, ?6, ?7)
ON CONFLICT (kind, tenant, name) DO UPDATE SET version = version + 1, body = excluded.body, sealed = excluded.sealed,
    updated_at = excluded.updated_at, updated_by = excluded.updated_by

-- name: delete_record
DELETE FROM records WHERE kind = ? AND tenant = ? AND name = ?

-- name: remove_records
DELETE FROM records WHERE tenant = (SELECT id FROM tenants WHERE number = ?1)

-- name: all_definitions
SELECT CAST(json_group_array(json(definition)) AS BLOB) FROM (SELECT definition FROM definitions ORDER BY type, tenant)

-- name: all_pauses
SELECT CAST(json_group_array(json_array(tenant, type, since, "by")) AS BLOB) FROM pauses
