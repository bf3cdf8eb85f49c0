-- A token as the audit log tells it: without what it is recognized by.
CREATE OR REPLACE FUNCTION ingot.token_told(t ingot.tokens) RETURNS json
LANGUAGE sql STABLE
AS $$
    SELECT json_build_object(
        'id', t.id, 'tenant', t.tenant, 'description', t.description, 'grants', t.grants::json, 'ending', t.ending,
        'created_at', ingot.moment(t.created_at), 'limits', t.limits::json, 'user', t."user",
        'created_by', t.created_by, 'expires_at', ingot.moment(t.expires_at), 'last_used_at', ingot.moment(t.last_used_at),
        'revoked_at', ingot.moment(t.revoked_at))
$$;

-- A worker credential as the audit log tells it: without what it is recognized by.
CREATE OR REPLACE FUNCTION ingot.worker_credential_told(w ingot.worker_credentials) RETURNS json
LANGUAGE sql STABLE
AS $$
    SELECT json_build_object(
        'id', w.id, 'tenant', w.tenant, 'ending', w.ending, 'created_at', ingot.moment(w.created_at), 'types', w.types,
        'enabled', w.enabled, 'created_by', w.created_by, 'regenerated_at', ingot.moment(w.regenerated_at),
        'last_used_at', ingot.moment(w.last_used_at))
$$;

-- Keep a token. The same call sent again, after its answer was lost, finds its own row.
CREATE OR REPLACE FUNCTION ingot.create_token(
    new_id uuid, of_tenant uuid, new_digest bytea, new_description text, new_grants text, new_limits text, new_ending text,
    new_created_by text, new_expires_at bigint, act text, of_user uuid DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    made ingot.tokens;
BEGIN
    PERFORM ingot.hold_tenant(of_tenant);
    IF of_user IS NOT NULL THEN
        PERFORM ingot.expect_user(of_user, true);
    END IF;
    INSERT INTO ingot.tokens (id, tenant, digest, description, grants, limits, ending, created_at, created_by, expires_at, "user")
    VALUES (new_id, of_tenant, new_digest, new_description, new_grants, new_limits, new_ending, ingot.clock(), new_created_by,
        new_expires_at, of_user)
    ON CONFLICT (id) DO NOTHING
    RETURNING * INTO made;
    IF FOUND THEN
        PERFORM ingot.note_act(act::json, of_tenant, 'token.created', 'token/' || new_id, NULL, ingot.token_told(made));
    END IF;
END
$$;

-- End a token of a tenant, or of anybody.
CREATE OR REPLACE FUNCTION ingot.revoke_token(of_id uuid, of_tenant uuid, act text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    known ingot.tokens;
    ended ingot.tokens;
BEGIN
    SELECT t.* INTO known FROM ingot.tokens AS t
    WHERE t.id = of_id AND (of_tenant IS NULL OR t.tenant = of_tenant) FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM ingot.refuse('IN010', format('there is no token ''%s''', of_id));
    END IF;
    IF known.revoked_at IS NULL THEN
        UPDATE ingot.tokens AS t SET revoked_at = ingot.clock() WHERE t.id = of_id RETURNING t.* INTO ended;
        PERFORM ingot.note_act(act::json, known.tenant, 'token.revoked', 'token/' || of_id,
            ingot.token_told(known), ingot.token_told(ended));
    END IF;
END
$$;

-- The token with this id, as JSON, and the person it belongs to.
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
            'owner', CASE WHEN t."user" IS NOT NULL THEN ingot.owner_of(t."user") END)
        FROM ingot.tokens AS t WHERE t.id = of_id
    );
END
$$;

-- Tokens of a tenant, or of the operator; newest first, from below an id.
CREATE OR REPLACE FUNCTION ingot.list_tokens(of_tenant uuid, before uuid, most integer) RETURNS SETOF text
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT json_build_object(
        'id', t.id, 'tenant', t.tenant, 'digest', '', 'description', t.description,
        'grants', t.grants::json, 'limits', t.limits::json, 'ending', t.ending, 'created_at', t.created_at,
        'created_by', t.created_by, 'expires_at', t.expires_at, 'last_used_at', t.last_used_at, 'revoked_at', t.revoked_at,
        'user', t."user")
    FROM ingot.tokens AS t
    WHERE (t.tenant = of_tenant OR of_tenant IS NULL AND t.tenant IS NULL) AND t.id < before
    ORDER BY t.id DESC LIMIT most
$$;

-- Keep a worker credential. The same call sent again finds its own row.
CREATE OR REPLACE FUNCTION ingot.create_worker_credential(
    new_id text, of_tenant uuid, new_digest bytea, new_types text[], new_ending text, new_created_by text, act text
) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    made ingot.worker_credentials;
BEGIN
    PERFORM ingot.hold_tenant(of_tenant);
    IF EXISTS (SELECT FROM ingot.worker_roles AS r WHERE r.role = new_id) THEN
        PERFORM ingot.refuse('IN012', format('there is a role of a worker called ''%s'' already', new_id));
    END IF;
    INSERT INTO ingot.worker_credentials (id, tenant, digest, types, enabled, ending, created_at, created_by)
    VALUES (new_id, of_tenant, new_digest, new_types, true, new_ending, ingot.clock(), new_created_by)
    ON CONFLICT (id) DO NOTHING
    RETURNING * INTO made;
    IF FOUND THEN
        PERFORM ingot.note_act(act::json, of_tenant, 'worker_credential.created', 'worker_credential/' || new_id, NULL,
            ingot.worker_credential_told(made));
    ELSIF NOT EXISTS (
        SELECT FROM ingot.worker_credentials AS w WHERE w.id = new_id AND w.digest = new_digest
    ) THEN
        PERFORM ingot.refuse('IN012', format('there is a worker credential ''%s'' already', new_id));
    END IF;
END
$$;

-- Enable or disable the credential of a tenant, or of anybody, or give it another secret.
CREATE OR REPLACE FUNCTION ingot.change_worker_credential(
    of_id text, of_tenant uuid, new_enabled boolean, new_digest bytea, new_ending text, action text, act text
) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    known ingot.worker_credentials;
    changed ingot.worker_credentials;
BEGIN
    SELECT w.* INTO known FROM ingot.worker_credentials AS w
    WHERE w.id = of_id AND (of_tenant IS NULL OR w.tenant = of_tenant) FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM ingot.refuse('IN011', format('there is no worker credential ''%s''', of_id));
    END IF;
    UPDATE ingot.worker_credentials AS w SET
        enabled = coalesce(new_enabled, w.enabled), digest = coalesce(new_digest, w.digest),
        ending = coalesce(new_ending, w.ending),
        regenerated_at = CASE WHEN new_digest IS NULL THEN w.regenerated_at ELSE ingot.clock() END
    WHERE w.id = of_id RETURNING w.* INTO changed;
    IF new_digest IS NOT NULL OR changed.enabled <> known.enabled THEN
        PERFORM ingot.note_act(act::json, known.tenant, action, 'worker_credential/' || of_id,
            ingot.worker_credential_told(known), ingot.worker_credential_told(changed));
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

-- Whether workers of a credential, or of a role, go by this name.
CREATE OR REPLACE FUNCTION ingot.is_worker_name(name text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT EXISTS (SELECT FROM ingot.worker_credentials AS w WHERE w.id = name)
        OR EXISTS (SELECT FROM ingot.worker_roles AS r WHERE r.role = name)
$$;

-- Worker credentials of a tenant, or those shared by all; by id, from behind one.
CREATE OR REPLACE FUNCTION ingot.list_worker_credentials(of_tenant uuid, after text, most integer) RETURNS SETOF text
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT json_build_object(
        'id', w.id, 'tenant', w.tenant, 'digest', '', 'types', w.types, 'enabled', w.enabled,
        'ending', w.ending, 'created_at', w.created_at, 'created_by', w.created_by, 'regenerated_at', w.regenerated_at,
        'last_used_at', w.last_used_at)
    FROM ingot.worker_credentials AS w
    WHERE (w.tenant = of_tenant OR of_tenant IS NULL AND w.tenant IS NULL) AND w.id > after COLLATE "C"
    ORDER BY w.id LIMIT most
$$;

-- Remember when credentials were last used; in the order of their ids, so that two who do it do not wait for each other.
CREATE OR REPLACE FUNCTION ingot.note_use(
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

-- Refuse a tenant that is not there; none stands for all.
CREATE OR REPLACE FUNCTION ingot.expect_tenant(of_tenant uuid) RETURNS void
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    IF of_tenant IS NOT NULL AND NOT EXISTS (SELECT FROM ingot.tenants AS t WHERE t.id = of_tenant) THEN
        PERFORM ingot.refuse('IN006', 'there is no such tenant');
    END IF;
END
$$;

-- Running jobs of a worker, or of any instance of a credential. Few jobs run: they are all looked at.
CREATE OR REPLACE FUNCTION ingot.leases_of_worker(worker text, of_tenant uuid, jobs_max integer)
RETURNS TABLE (id text, fence bigint)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT l.id::text, l.fence FROM ingot.leases AS l
    WHERE (l.worker_id = worker OR starts_with(l.worker_id, worker || '/')) AND (of_tenant IS NULL OR l.tenant = of_tenant)
    LIMIT jobs_max
$$;
