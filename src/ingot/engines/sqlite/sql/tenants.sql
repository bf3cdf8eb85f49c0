-- Tenants, and the groups that have roles in them.

-- name: all_tenants
SELECT CAST(json_group_array(json_array(
    id, number, weight, json(limits), json(iif(removed_at IS NULL, 'false', 'true')))) AS BLOB) FROM tenants

-- name: insert_tenants
INSERT INTO tenants (number, id, slug, weight, time_zone, limits) VALUES (?, ?, ?, ?, ?, ?)

-- name: tenant_by_name
SELECT CAST(json_object(
    'id', id, 'slug', slug, 'weight', weight, 'time_zone', time_zone, 'limits', json(limits),
    'groups', json((SELECT json_group_object(g.name, g.role) FROM tenant_groups AS g WHERE g.tenant = number))) AS BLOB)
FROM tenants WHERE (id = ?1 OR slug = ?1) AND removed_at IS NULL
ORDER BY id = ?1 DESC LIMIT 1

-- name: page_of_tenants
SELECT CAST(json_group_array(json_object(
    'id', id, 'slug', slug, 'weight', weight, 'time_zone', time_zone, 'limits', json(limits),
    'groups', json((SELECT json_group_object(g.name, g.role) FROM tenant_groups AS g WHERE g.tenant = number)))) AS BLOB)
FROM (SELECT * FROM tenants WHERE removed_at IS NULL AND slug > ?1 ORDER BY slug LIMIT ?2)

-- name: update_tenant
UPDATE tenants SET slug = ?, weight = ?, time_zone = ?, limits = ? WHERE id = ?

-- name: remove_tenant
UPDATE tenants SET id = 'removed ' || id, slug = 'removed ' || id, removed_at = ?2 WHERE number = ?1 RETURNING id

-- name: delete_removed_tenant
DELETE FROM tenants WHERE number = ?1 AND removed_at IS NOT NULL

-- name: insert_tenant_groups
-- ?2 is a JSON object of group names and roles.
INSERT INTO tenant_groups (tenant, name, role) SELECT ?1, g.key, g.value FROM json_each(?2) AS g

-- name: delete_tenant_groups
DELETE FROM tenant_groups WHERE tenant = ?
