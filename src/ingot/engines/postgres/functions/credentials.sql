-- A token as JSON for the audit log, without its digest.
CREATE OR REPLACE FUNCTION ingot.token_audit_json(t ingot.tokens) RETURNS json
LANGUAGE sql STABLE
AS $$
    SELECT json_build_object(
        'id', t.id, 'tenant', t.tenant, 'description', t.description, 'grants', t.grants::json, 'ending', t.ending,
        'created_at', ingot.iso_timestamp(t.created_at), 'limits', t.limits::json, 'user', t."user",
        'created_by', t.created_by, 'expires_at', ingot.iso_timestamp(t.expires_at), 'last_used_at',
        ingot.iso_timestamp(t.last_used_at), 'revoked_at', ingot.iso_timestamp(t.revoked_at))
$$;

-- A worker credential as JSON for the audit log, without its digest.
CREATE OR REPLACE FUNCTION ingot.worker_credential_audit_json(w ingot.worker_credentials) RETURNS json
LANGUAGE sql STABLE
AS $$
    SELECT json_build_object(
        'id', w.id, 'tenant', w.tenant, 'ending', w.ending, 'created_at', ingot.iso_timestamp(w.created_at), 'types', w.types,
        'enabled', w.enabled, 'created_by', w.created_by, 'regenerated_at', ingot.iso_timestamp(w.regenerated_at),
        'last_used_at', ingot.iso_timestamp(w.last_used_at))
$$;

-- Create a token. A call that is repeated after its answer was lost finds its own row.
CREATE OR REPLACE FUNCTION ingot.create_token(
    new_id uuid, of_tenant uuid, new_digest bytea, new_description text, new_grants text, new_limits text, new_ending text,
    new_created_by text, new_expires_at bigint, act text, of_user uuid DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    now bigint := ingot.clock();
    created ingot.tokens;
BEGIN
    -- The locks make other calls wait, so that the numbers of tokens are exact.
    PERFORM ingot.lock_tenant(of_tenant);
    PERFORM FROM ingot.tenants AS t WHERE t.id = of_tenant FOR NO KEY UPDATE;
    IF of_user IS NOT NULL THEN
        PERFORM ingot.expect_user(of_user);
        IF (SELECT count(*) FROM (
            SELECT FROM ingot.tokens AS t WHERE t."user" = of_user AND t.revoked_at IS NULL AND t.id <> new_id
                AND coalesce(t.expires_at, now + 1) > now LIMIT {identity.credentials.PERSON_TOKENS_MAX}
        ) AS v) >= {identity.credentials.PERSON_TOKENS_MAX} THEN
            PERFORM ingot.refuse('IN014',
                'the person has {identity.credentials.PERSON_TOKENS_MAX} valid tokens, which is the maximum');
        END IF;
    END IF;
    IF (SELECT count(*) FROM (
        SELECT FROM ingot.tokens AS t WHERE (t.tenant = of_tenant OR of_tenant IS NULL AND t.tenant IS NULL)
            AND t.revoked_at IS NULL AND t.id <> new_id AND coalesce(t.expires_at, now + 1) > now
        LIMIT {identity.credentials.TENANT_TOKENS_MAX}
    ) AS v) >= {identity.credentials.TENANT_TOKENS_MAX} THEN
        PERFORM ingot.refuse('IN014',
            'the tenant has {identity.credentials.TENANT_TOKENS_MAX} valid tokens, which is the maximum');
    END IF;
    INSERT INTO ingot.tokens (id, tenant, digest, description, grants, limits, ending, created_at, created_by, expires_at, "user")
    VALUES (new_id, of_tenant, new_digest, new_description, new_grants, new_limits, new_ending, ingot.clock(), new_created_by,
        new_expires_at, of_user)
    ON CONFLICT (id) DO NOTHING
    RETURNING * INTO created;
    IF FOUND THEN
        PERFORM ingot.add_audit_entry(act::json, of_tenant, 'token.created', 'token/' || new_id, NULL,
            ingot.token_audit_json(created));
    END IF;
END
$$;

-- Revoke a token of a tenant, or of any tenant if `of_tenant` is NULL.
CREATE OR REPLACE FUNCTION ingot.revoke_token(of_id uuid, of_tenant uuid, act text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    existing ingot.tokens;
    revoked ingot.tokens;
BEGIN
    SELECT t.* INTO existing FROM ingot.tokens AS t
    WHERE t.id = of_id AND (of_tenant IS NULL OR t.tenant = of_tenant) FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM ingot.refuse('IN010', format('there is no token ''%s''', of_id));
    END IF;
    IF existing.revoked_at IS NULL THEN
        UPDATE ingot.tokens AS t SET revoked_at = ingot.clock() WHERE t.id = of_id RETURNING t.* INTO revoked;
        PERFORM ingot.add_audit_entry(act::json, existing.tenant, 'token.revoked', 'token/' || of_id,
            ingot.token_audit_json(existing), ingot.token_audit_json(revoked));
    END IF;
END
$$;

-- The token with this id, as JSON, with its owner and their roles if it belongs to a person.
CREATE OR REPLACE FUNCTION ingot.find_token(of_id uuid) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN (
        SELECT json_build_object(
            'id', t.id, 'tenant', t.tenant, 'digest', encode(t.digest, 'hex'), 'description', t.description,
            'grants', t.grants::json, 'limits', t.limits::json, 'ending', t.ending, 'created_at', t.created_at,
            'created_by', t.created_by, 'expires_at', t.expires_at, 'last_used_at', t.last_used_at,
            'revoked_at', t.revoked_at, 'user', t."user",
            'owner', CASE WHEN t."user" IS NOT NULL THEN ingot.user_with_roles(t."user") END)
        FROM ingot.tokens AS t WHERE t.id = of_id
    );
END
$$;

-- Tokens of a tenant, or of the operator; newest first, below an id.
CREATE OR REPLACE FUNCTION ingot.list_tokens(of_tenant uuid, before_id uuid, rows_max integer) RETURNS SETOF text
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT json_build_object(
        'id', t.id, 'tenant', t.tenant, 'digest', '', 'description', t.description,
        'grants', t.grants::json, 'limits', t.limits::json, 'ending', t.ending, 'created_at', t.created_at,
        'created_by', t.created_by, 'expires_at', t.expires_at, 'last_used_at', t.last_used_at, 'revoked_at', t.revoked_at,
        'user', t."user")
    FROM ingot.tokens AS t
    WHERE (t.tenant = of_tenant OR of_tenant IS NULL AND t.tenant IS NULL) AND t.id < before_id
    ORDER BY t.id DESC LIMIT rows_max
$$;

-- Create a worker credential. A repeated call finds its own row.
CREATE OR REPLACE FUNCTION ingot.create_worker_credential(
    new_id text, of_tenant uuid, new_digest bytea, new_types text[], new_ending text, new_created_by text, act text
) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    created ingot.worker_credentials;
BEGIN
    PERFORM ingot.lock_tenant(of_tenant);
    IF EXISTS (SELECT FROM ingot.worker_roles AS r WHERE r.role = new_id) THEN
        PERFORM ingot.refuse('IN012', format('a worker role with the name ''%s'' already exists', new_id));
    END IF;
    INSERT INTO ingot.worker_credentials (id, tenant, digest, types, enabled, ending, created_at, created_by)
    VALUES (new_id, of_tenant, new_digest, new_types, true, new_ending, ingot.clock(), new_created_by)
    ON CONFLICT (id) DO NOTHING
    RETURNING * INTO created;
    IF FOUND THEN
        PERFORM ingot.add_audit_entry(act::json, of_tenant, 'worker_credential.created', 'worker_credential/' || new_id, NULL,
            ingot.worker_credential_audit_json(created));
    ELSIF NOT EXISTS (
        SELECT FROM ingot.worker_credentials AS w WHERE w.id = new_id AND w.digest = new_digest
    ) THEN
        PERFORM ingot.refuse('IN012', format('the worker credential ''%s'' already exists', new_id));
    END IF;
END
$$;

-- Enable or disable a worker credential, or replace its secret. `of_tenant` NULL matches every tenant.
CREATE OR REPLACE FUNCTION ingot.change_worker_credential(
    of_id text, of_tenant uuid, new_enabled boolean, new_digest bytea, new_ending text, action text, act text
) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    existing ingot.worker_credentials;
    changed ingot.worker_credentials;
BEGIN
    SELECT w.* INTO existing FROM ingot.worker_credentials AS w
    WHERE w.id = of_id AND (of_tenant IS NULL OR w.tenant = of_tenant) FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM ingot.refuse('IN011', format('there is no worker credential ''%s''', of_id));
    END IF;
    UPDATE ingot.worker_credentials AS w SET
        enabled = coalesce(new_enabled, w.enabled), digest = coalesce(new_digest, w.digest),
        ending = coalesce(new_ending, w.ending),
        regenerated_at = CASE WHEN new_digest IS NULL THEN w.regenerated_at ELSE ingot.clock() END
    WHERE w.id = of_id RETURNING w.* INTO changed;
    IF new_digest IS NOT NULL OR changed.enabled <> existing.enabled THEN
        PERFORM ingot.add_audit_entry(act::json, existing.tenant, action, 'worker_credential/' || of_id,
            ingot.worker_credential_audit_json(existing), ingot.worker_credential_audit_json(changed));
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION ingot.find_worker_credential(of_id text) RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT json_build_object(
        'id', w.id, 'tenant', w.tenant, 'digest', encode(w.digest, 'hex'), 'types', w.types, 'enabled', w.enabled,
        'ending', w.ending, 'created_at', w.created_at, 'created_by', w.created_by, 'regenerated_at', w.regenerated_at,
        'last_used_at', w.last_used_at)
    FROM ingot.worker_credentials AS w WHERE w.id = of_id
$$;

-- Whether a worker credential or a worker role has this name.
CREATE OR REPLACE FUNCTION ingot.is_worker_name(name text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT EXISTS (SELECT FROM ingot.worker_credentials AS w WHERE w.id = name)
        OR EXISTS (SELECT FROM ingot.worker_roles AS r WHERE r.role = name)
$$;

-- Worker credentials of a tenant, or shared ones; by id, after one.
CREATE OR REPLACE FUNCTION ingot.list_worker_credentials(of_tenant uuid, after text, rows_max integer) RETURNS SETOF text
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT json_build_object(
        'id', w.id, 'tenant', w.tenant, 'digest', '', 'types', w.types, 'enabled', w.enabled,
        'ending', w.ending, 'created_at', w.created_at, 'created_by', w.created_by, 'regenerated_at', w.regenerated_at,
        'last_used_at', w.last_used_at)
    FROM ingot.worker_credentials AS w
    WHERE (w.tenant = of_tenant OR of_tenant IS NULL AND w.tenant IS NULL) AND w.id > after COLLATE "C"
    ORDER BY w.id LIMIT rows_max
$$;

-- Record when credentials were last used, in the order of their ids so that concurrent calls cannot deadlock.
CREATE OR REPLACE FUNCTION ingot.record_use(
    token_ids uuid[], token_times bigint[], worker_ids text[], worker_times bigint[],
    session_ids uuid[] DEFAULT '{}', session_times bigint[] DEFAULT '{}'
) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    used record;
BEGIN
    FOR used IN SELECT * FROM unnest(token_ids, token_times) AS u (id, at) ORDER BY u.id LOOP
        UPDATE ingot.tokens AS t SET last_used_at = used.at
        WHERE t.id = used.id AND coalesce(t.last_used_at, 0) < used.at;
    END LOOP;
    FOR used IN SELECT * FROM unnest(worker_ids, worker_times) AS u (id, at) ORDER BY u.id LOOP
        UPDATE ingot.worker_credentials AS w SET last_used_at = used.at
        WHERE w.id = used.id AND coalesce(w.last_used_at, 0) < used.at;
    END LOOP;
    FOR used IN SELECT * FROM unnest(session_ids, session_times) AS u (id, at) ORDER BY u.id LOOP
        UPDATE ingot.sessions AS s SET last_used_at = used.at WHERE s.id = used.id AND s.last_used_at < used.at;
    END LOOP;
END
$$;

-- Running jobs of a worker, or of all instances of a credential. Reads all leases, of which there are few.
CREATE OR REPLACE FUNCTION ingot.leases_of_worker(worker text, of_tenant uuid, jobs_max integer)
RETURNS TABLE (id text, fence bigint)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT l.id::text, l.fence FROM ingot.leases AS l
    WHERE (l.worker_id = worker OR starts_with(l.worker_id, worker || '/')) AND (of_tenant IS NULL OR l.tenant = of_tenant)
    LIMIT jobs_max
$$;
