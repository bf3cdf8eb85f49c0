INSERT INTO audit (id, tenant, at, who, name, action, target, address, request_id, before, after)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO NOTHING
