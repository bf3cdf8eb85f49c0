-- One worker, and whether its credential lets it in, where it has one of its own tenant.
SELECT CAST(json_object(
    'id', w.id, 'tenant', (SELECT t.id FROM tenants AS t WHERE t.number = w.tenant), 'types', json(w.types),
    'hostname', w.hostname, 'version', w.version, 'metadata', CAST(w.metadata AS TEXT),
    'registered_at', w.registered_at, 'registered_by', w.registered_by, 'seen_at', w.seen_at,
    'online', json(iif(w.online, 'true', 'false')), 'draining', json(iif(w.draining, 'true', 'false')),
    'disabled', json(iif(EXISTS (
        SELECT 1 FROM worker_credentials AS c
        WHERE c.id = substr(w.id, 1, instr(w.id || '/', '/') - 1) AND coalesce(c.tenant, 0) = w.tenant AND c.enabled = 0
    ), 'true', 'false'))) AS BLOB)
FROM workers AS w WHERE w.tenant = ?1 AND w.id = ?2
