-- The audit log.

-- name: insert_audit_entry
INSERT INTO audit (id, tenant, at, who, name, action, target, address, request_id, before, after)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO NOTHING

-- name: audit_entries
SELECT CAST(json_group_array(json_object(
    'id', a.id, 'tenant', a.tenant, 'at', a.at, 'who', a.who, 'name', a.name, 'action', a.action, 'target', a.target,
    'address', a.address, 'request_id', a.request_id, 'before', json(a.before), 'after', json(a.after))) AS BLOB)
FROM (
    SELECT * FROM audit AS e
    WHERE e.id < ?1 AND (?2 IS NULL OR e.action = ?2) AND (?3 IS NULL OR e.who = ?3) AND (?4 IS NULL OR e.target = ?4)
    ORDER BY e.id DESC LIMIT ?5
) AS a

-- name: audit_entries_of_tenant
SELECT CAST(json_group_array(json_object(
    'id', a.id, 'tenant', a.tenant, 'at', a.at, 'who', a.who, 'name', a.name, 'action', a.action, 'target', a.target,
    'address', a.address, 'request_id', a.request_id, 'before', json(a.before), 'after', json(a.after))) AS BLOB)
FROM (
    SELECT * FROM audit AS e
    WHERE e.tenant = ?1 AND e.id < ?2 AND (?3 IS NULL OR e.action = ?3) AND (?4 IS NULL OR e.who = ?4)
        AND (?5 IS NULL OR e.target = ?5)
    ORDER BY e.id DESC LIMIT ?6
) AS a
