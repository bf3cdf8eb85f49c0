-- Tokens and worker credentials.

-- name: insert_tokens
INSERT INTO tokens (id, tenant, digest, description, grants, limits, ending, created_at, created_by, expires_at, user)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: token_by_id
SELECT CAST(json_object(
    'id', t.id, 'tenant', (SELECT n.id FROM tenants AS n WHERE n.number = t.tenant), 'digest', hex(t.digest),
    'description', t.description, 'grants', json(t.grants), 'limits', json(t.limits), 'ending', t.ending,
    'created_at', t.created_at, 'created_by', t.created_by, 'expires_at', t.expires_at,
    'last_used_at', t.last_used_at, 'revoked_at', t.revoked_at, 'user', t.user,
    'owner', json((SELECT w.owner FROM owners AS w WHERE w.id = t.user))) AS BLOB)
FROM tokens AS t WHERE t.id = ?

-- name: tokens_of_tenant
-- Tokens of a tenant, or of the operator for NULL, below an ID, newest first.
SELECT CAST(json_group_array(json_object(
    'id', id, 'tenant', ?1, 'digest', '',
    'description', description, 'grants', json(grants), 'limits', json(limits), 'ending', ending,
    'created_at', created_at, 'created_by', created_by, 'expires_at', expires_at,
    'last_used_at', last_used_at, 'revoked_at', revoked_at, 'user', user)) AS BLOB)
FROM (
    SELECT * FROM tokens
    WHERE tenant IS (SELECT number FROM tenants WHERE id = ?1) AND id < ?2
    ORDER BY id DESC LIMIT ?3
)

-- name: tokens_of_user
-- Tokens below an ID, newest first.
SELECT CAST(json_group_array(json_object(
    'id', t.id, 'tenant', (SELECT n.id FROM tenants AS n WHERE n.number = t.tenant), 'digest', '',
    'description', t.description, 'grants', json(t.grants), 'limits', json(t.limits), 'ending', t.ending,
    'created_at', t.created_at, 'created_by', t.created_by, 'expires_at', t.expires_at,
    'last_used_at', t.last_used_at, 'revoked_at', t.revoked_at, 'user', t.user)) AS BLOB)
FROM (SELECT * FROM tokens AS o WHERE o.user = ?1 AND o.user IS NOT NULL AND o.id < ?2 ORDER BY o.id DESC LIMIT ?3) AS t

-- name: record_token_use
UPDATE tokens SET last_used_at = ?2 WHERE id = ?1 AND coalesce(last_used_at, 0) < ?2

-- name: revoke_token
UPDATE tokens SET revoked_at = coalesce(revoked_at, ?2) WHERE id = ?1

-- name: revoke_tokens_of_user
-- In one tenant, or in all for NULL.
UPDATE tokens SET revoked_at = ?2
WHERE user = ?1 AND user IS NOT NULL AND revoked_at IS NULL AND (?3 IS NULL OR tenant = ?3)

-- name: count_valid_tokens_of_user
-- Up to ?3 tokens in all tenants.
SELECT count(*) FROM (
    SELECT 1 FROM tokens WHERE user = ?1 AND user IS NOT NULL AND revoked_at IS NULL AND coalesce(expires_at, ?2 + 1) > ?2
    LIMIT ?3
)

-- name: count_valid_tokens
-- Up to ?3 tokens of a tenant, or of the operator for NULL.
SELECT count(*) FROM (
    SELECT 1 FROM tokens WHERE tenant IS ?1 AND revoked_at IS NULL AND coalesce(expires_at, ?2 + 1) > ?2 LIMIT ?3
)

-- name: remove_tokens
DELETE FROM tokens WHERE tenant = ?1

-- name: insert_worker_credentials
INSERT INTO worker_credentials (id, tenant, digest, types, enabled, ending, created_at, created_by)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)

-- name: worker_credential_by_id
SELECT CAST(json_object(
    'id', w.id, 'tenant', (SELECT n.id FROM tenants AS n WHERE n.number = w.tenant), 'digest', hex(w.digest),
    'types', json(w.types), 'enabled', json(iif(w.enabled, 'true', 'false')), 'ending', w.ending,
    'created_at', w.created_at, 'created_by', w.created_by, 'regenerated_at', w.regenerated_at,
    'last_used_at', w.last_used_at) AS BLOB)
FROM worker_credentials AS w WHERE w.id = ?

-- name: worker_credentials_of_tenant
-- Worker credentials of a tenant, or the shared ones for NULL, after an ID, in order.
SELECT CAST(json_group_array(json_object(
    'id', id, 'tenant', ?1, 'digest', '',
    'types', json(types), 'enabled', json(iif(enabled, 'true', 'false')), 'ending', ending,
    'created_at', created_at, 'created_by', created_by, 'regenerated_at', regenerated_at,
    'last_used_at', last_used_at)) AS BLOB)
FROM (
    SELECT * FROM worker_credentials
    WHERE tenant IS (SELECT number FROM tenants WHERE id = ?1) AND id > ?2
    ORDER BY id LIMIT ?3
)

-- name: change_worker_credential
UPDATE worker_credentials SET enabled = coalesce(?2, enabled), digest = coalesce(?3, digest), ending = coalesce(?4, ending),
    regenerated_at = CASE WHEN ?3 IS NULL THEN regenerated_at ELSE ?5 END
WHERE id = ?1

-- name: record_worker_credential_use
UPDATE worker_credentials SET last_used_at = ?2 WHERE id = ?1 AND coalesce(last_used_at, 0) < ?2

-- name: remove_worker_credentials
DELETE FROM worker_credentials WHERE tenant = ?1
