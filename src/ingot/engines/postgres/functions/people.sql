-- A person, as JSON.
CREATE OR REPLACE FUNCTION ingot.person_json(of_user uuid) RETURNS json
LANGUAGE sql STABLE
AS $$
    SELECT json_build_object(
        'id', u.id, 'issuer', u.issuer, 'subject', u.subject, 'email', u.email, 'email_verified', u.email_verified,
        'name', u.name, 'picture', u.picture,
        'groups', to_json(ARRAY(SELECT g.name FROM ingot.user_groups AS g WHERE g."user" = u.id ORDER BY g.name)),
        'enabled', u.enabled, 'created_at', u.created_at, 'signed_in_at', u.signed_in_at)
    FROM ingot.users AS u WHERE u.id = of_user
$$;

-- A person as JSON for the audit log, with times as texts.
CREATE OR REPLACE FUNCTION ingot.person_audit_json(person json) RETURNS json
LANGUAGE sql IMMUTABLE
AS $$
    SELECT (person::jsonb || jsonb_build_object(
        'created_at', ingot.iso_timestamp((person->>'created_at')::bigint),
        'signed_in_at', ingot.iso_timestamp((person->>'signed_in_at')::bigint)))::json
$$;

-- A person and their roles: their own, those of their groups, and those of invitations to their email if it is verified.
-- The highest role in a tenant counts; the names of roles sort from highest to lowest.
CREATE OR REPLACE FUNCTION ingot.user_with_roles(of_user uuid) RETURNS json
LANGUAGE sql STABLE
AS $$
    SELECT json_build_object('user', ingot.person_json(u.id), 'roles', coalesce((
        SELECT json_agg(json_build_object('tenant', t.id, 'slug', t.slug, 'role', r.role) ORDER BY t.slug COLLATE "C")
        FROM (
            SELECT o.tenant, min(o.role) AS role
            FROM (
                SELECT m.tenant, m.role FROM ingot.members AS m WHERE m."user" = u.id
                UNION ALL
                SELECT t.tenant, t.role FROM ingot.user_groups AS g JOIN ingot.tenant_groups AS t ON t.name = g.name
                WHERE g."user" = u.id
                UNION ALL
                SELECT i.tenant, i.role FROM ingot.invitations AS i WHERE u.email_verified AND i.email = u.email_lower
            ) AS o
            GROUP BY o.tenant
        ) AS r JOIN ingot.tenants AS t ON t.id = r.tenant
    ), '[]'::json))
    FROM ingot.users AS u WHERE u.id = of_user
$$;

-- The member of a tenant with this id, a person or an invitation, as JSON. The highest role counts; the names of roles sort
-- from highest to lowest. In `sources` their own role comes before roles of groups.
CREATE OR REPLACE FUNCTION ingot.member_json(of_tenant uuid, of_id uuid) RETURNS json
LANGUAGE sql STABLE
AS $$
    SELECT json_build_object(
        'id', u.id, 'role', s.role, 'sources', s.sources, 'user', u.id, 'email', u.email, 'name', u.name,
        'picture', u.picture, 'invited', false)
    FROM ingot.users AS u CROSS JOIN LATERAL (
        SELECT min(o.role) AS role,
            json_agg(json_strip_nulls(json_build_object('role', o.role, 'group', o.name)) ORDER BY o.name NULLS FIRST) AS sources
        FROM (
            SELECT m.role, NULL AS name FROM ingot.members AS m WHERE m.tenant = of_tenant AND m."user" = u.id
            UNION ALL
            SELECT t.role, t.name FROM ingot.tenant_groups AS t
                JOIN ingot.user_groups AS g ON g."user" = u.id AND g.name = t.name
            WHERE t.tenant = of_tenant
        ) AS o
    ) AS s
    WHERE u.id = of_id AND s.role IS NOT NULL
    UNION ALL
    SELECT json_build_object(
        'id', i.id, 'role', i.role, 'sources', json_build_array(json_build_object('role', i.role)), 'user', NULL,
        'email', i.email, 'name', NULL, 'picture', NULL, 'invited', true)
    FROM ingot.invitations AS i WHERE i.id = of_id AND i.tenant = of_tenant
$$;

-- Refuse a person who does not exist, or is disabled if `must_be_enabled`. The lock makes `enable_user` wait.
CREATE OR REPLACE FUNCTION ingot.expect_user(of_user uuid, must_be_enabled boolean) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM FROM ingot.users AS u WHERE u.id = of_user AND (u.enabled OR NOT must_be_enabled) FOR SHARE;
    IF NOT FOUND THEN
        PERFORM ingot.refuse('IN031', format('there is no person ''%s''', of_user));
    END IF;
END
$$;

-- Whether the audit log has this act: the same call was sent before, and its answer was lost.
CREATE OR REPLACE FUNCTION ingot.is_in_audit_log(act json) RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT EXISTS (SELECT FROM ingot.audit AS a WHERE a.id = (act->>'id')::uuid)
$$;

-- Store a login, and delete up to `expired_max` expired ones.
CREATE OR REPLACE FUNCTION ingot.begin_login(
    new_digest bytea, new_next text, new_link boolean, new_expires_at bigint, expired_max integer, act json
) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    now bigint := ingot.clock();
BEGIN
    DELETE FROM ingot.logins AS l WHERE l.digest = ANY (ARRAY(
        SELECT e.digest FROM ingot.logins AS e WHERE e.expires_at <= now
        ORDER BY e.expires_at LIMIT expired_max FOR UPDATE SKIP LOCKED
    ));
    INSERT INTO ingot.logins (digest, next, link, expires_at) VALUES (new_digest, new_next, new_link, new_expires_at)
    ON CONFLICT (digest) DO NOTHING;
    IF act IS NOT NULL THEN
        PERFORM ingot.add_audit_entry(act, NULL, 'link.created', 'link', NULL, NULL);
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION ingot.consume_login(of_digest bytea, of_link boolean) RETURNS text
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    DELETE FROM ingot.logins AS l WHERE l.digest = of_digest AND l.link = of_link AND l.expires_at > ingot.clock()
    RETURNING l.next
$$;

-- Sign a person in, and return them. A repeated call finds its own rows.
CREATE OR REPLACE FUNCTION ingot.sign_in(
    person json, new_email_lower text, new_user uuid, new_session uuid, new_digest bytea, new_expires_at bigint,
    new_address text, new_agent text, old_digest bytea, expired_max integer, act json
) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    now bigint := ingot.clock();
    user_id uuid;
BEGIN
    INSERT INTO ingot.users AS u
        (id, issuer, subject, email, email_lower, email_verified, name, picture, enabled, created_at, signed_in_at)
    VALUES (new_user, person->>'issuer', person->>'subject', person->>'email', new_email_lower,
        (person->>'email_verified')::boolean, person->>'name', person->>'picture', true, now, now)
    ON CONFLICT (issuer, subject) DO UPDATE SET
        email = excluded.email, email_lower = excluded.email_lower, email_verified = excluded.email_verified,
        name = excluded.name, picture = excluded.picture, signed_in_at = excluded.signed_in_at
    WHERE u.enabled
    RETURNING u.id INTO user_id;
    IF user_id IS NULL THEN
        PERFORM ingot.refuse('IN030', 'an operator has disabled this person');
    END IF;
    DELETE FROM ingot.user_groups AS g WHERE g."user" = user_id;
    INSERT INTO ingot.user_groups ("user", name)
    SELECT DISTINCT user_id, g.name FROM json_array_elements_text(person->'groups') AS g (name);
    IF (person->>'email_verified')::boolean THEN
        WITH accepted AS (
            DELETE FROM ingot.invitations AS i WHERE i.email = new_email_lower RETURNING i.tenant, i.role, i.created_by
        )
        INSERT INTO ingot.members AS m (tenant, "user", role, created_at, created_by)
        SELECT a.tenant, user_id, a.role, now, a.created_by FROM accepted AS a
        ON CONFLICT (tenant, "user") DO UPDATE SET role = least(m.role, excluded.role);
    END IF;
    DELETE FROM ingot.sessions AS s WHERE s.id = ANY (ARRAY(
        SELECT e.id FROM ingot.sessions AS e WHERE e.expires_at <= now
        ORDER BY e.expires_at LIMIT expired_max FOR UPDATE SKIP LOCKED
    ));
    DELETE FROM ingot.sessions AS s WHERE s.digest = old_digest;
    INSERT INTO ingot.sessions (id, digest, "user", created_at, expires_at, last_used_at, address, agent)
    VALUES (new_session, new_digest, user_id, now, new_expires_at, now, new_address, new_agent)
    ON CONFLICT (id) DO NOTHING;
    PERFORM ingot.add_audit_entry(
        (act::jsonb || jsonb_build_object('who', 'user:' || user_id,
            'name', coalesce(person->>'email', person->>'name', person->>'subject')))::json,
        NULL, 'session.created', format('session/%s', new_session), NULL,
        json_build_object('user', user_id, 'email', person->>'email'));
    RETURN ingot.person_json(user_id);
END
$$;

-- Update the groups of a known person who is not allowed to sign in, and end their sessions.
CREATE OR REPLACE FUNCTION ingot.reject_sign_in(person json, label text, act json) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    user_id uuid;
    old_value json;
    new_value json;
BEGIN
    SELECT u.id INTO user_id FROM ingot.users AS u
    WHERE u.issuer = person->>'issuer' AND u.subject = person->>'subject' FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    old_value := ingot.person_json(user_id);
    DELETE FROM ingot.user_groups AS g WHERE g."user" = user_id;
    INSERT INTO ingot.user_groups ("user", name)
    SELECT DISTINCT user_id, g.name FROM json_array_elements_text(person->'groups') AS g (name);
    DELETE FROM ingot.sessions AS s WHERE s."user" = user_id;
    new_value := ingot.person_json(user_id);
    IF new_value::jsonb <> old_value::jsonb THEN
        PERFORM ingot.add_audit_entry((act::jsonb || jsonb_build_object('who', 'user:' || user_id, 'name', label))::json,
            NULL, 'user.turned_away', format('user/%s', user_id), ingot.person_audit_json(old_value),
                ingot.person_audit_json(new_value));
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION ingot.end_session(of_id uuid, of_user uuid, act json) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    session_user_id uuid;
BEGIN
    DELETE FROM ingot.sessions AS s WHERE s.id = of_id AND (of_user IS NULL OR s."user" = of_user)
    RETURNING s."user" INTO session_user_id;
    IF session_user_id IS NULL THEN
        IF ingot.is_in_audit_log(act) THEN
            RETURN;
        END IF;
        PERFORM ingot.refuse('IN034', format('there is no session ''%s''', of_id));
    END IF;
    PERFORM ingot.add_audit_entry(act, NULL, 'session.ended', format('session/%s', of_id),
        (SELECT json_build_object('user', u.id, 'email', u.email) FROM ingot.users AS u WHERE u.id = session_user_id), NULL);
END
$$;

-- A valid session of an enabled person, with the person and their roles.
CREATE OR REPLACE FUNCTION ingot.find_session(of_digest bytea) RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT json_build_object('session', json_build_object(
        'id', s.id, 'user', s."user", 'created_at', s.created_at, 'expires_at', s.expires_at,
        'last_used_at', s.last_used_at, 'address', s.address, 'agent', s.agent), 'owner', ingot.user_with_roles(u.id))
    FROM ingot.sessions AS s JOIN ingot.users AS u ON u.id = s."user"
    WHERE s.digest = of_digest AND s.expires_at > ingot.clock() AND u.enabled
$$;

-- The valid sessions of a person, newest first.
CREATE OR REPLACE FUNCTION ingot.list_sessions(of_user uuid, rows_max integer) RETURNS SETOF text
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT json_build_object(
        'id', s.id, 'user', s."user", 'created_at', s.created_at, 'expires_at', s.expires_at,
        'last_used_at', s.last_used_at, 'address', s.address, 'agent', s.agent)
    FROM ingot.sessions AS s WHERE s."user" = of_user AND s.expires_at > ingot.clock()
    ORDER BY s.id DESC LIMIT rows_max
$$;

-- Enable a person, or disable them and end their sessions and tokens. Returns the person.
CREATE OR REPLACE FUNCTION ingot.enable_user(of_id uuid, new_enabled boolean, act json) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    old_value json;
    new_value json;
BEGIN
    PERFORM FROM ingot.users AS u WHERE u.id = of_id FOR UPDATE;
    old_value := ingot.person_json(of_id);
    IF old_value IS NULL THEN
        PERFORM ingot.refuse('IN031', format('there is no person ''%s''', of_id));
    END IF;
    UPDATE ingot.users AS u SET enabled = new_enabled WHERE u.id = of_id;
    IF NOT new_enabled THEN
        DELETE FROM ingot.sessions AS s WHERE s."user" = of_id;
        UPDATE ingot.tokens AS t SET revoked_at = ingot.clock() WHERE t."user" = of_id AND t.revoked_at IS NULL;
    END IF;
    new_value := ingot.person_json(of_id);
    IF new_value::jsonb <> old_value::jsonb THEN
        PERFORM ingot.add_audit_entry(act, NULL, CASE WHEN new_enabled THEN 'user.enabled' ELSE 'user.disabled' END,
            format('user/%s', of_id), ingot.person_audit_json(old_value), ingot.person_audit_json(new_value));
    END IF;
    RETURN new_value;
END
$$;

-- A person and their roles.
CREATE OR REPLACE FUNCTION ingot.find_user(of_id uuid) RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT ingot.user_with_roles(of_id)
$$;

-- People with an email, or all; newest first, below an id.
CREATE OR REPLACE FUNCTION ingot.list_users(of_email text, before_id uuid, rows_max integer) RETURNS SETOF text
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF of_email IS NULL THEN
        RETURN QUERY SELECT ingot.person_json(u.id)::text FROM ingot.users AS u
            WHERE u.id < before_id ORDER BY u.id DESC LIMIT rows_max;
    ELSE
        RETURN QUERY SELECT ingot.person_json(u.id)::text FROM ingot.users AS u
            WHERE u.email_lower = of_email AND u.id < before_id ORDER BY u.id DESC LIMIT rows_max;
    END IF;
END
$$;

-- Give a role to a person, or invite an email address, and return the member.
CREATE OR REPLACE FUNCTION ingot.put_member(
    of_tenant uuid, new_role text, of_user uuid, of_email text, new_invitation uuid, act json
) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    member uuid := of_user;
    old_value json;
    new_value json;
BEGIN
    PERFORM ingot.lock_tenant(of_tenant);
    IF of_user IS NOT NULL THEN
        PERFORM ingot.expect_user(of_user, false);
        old_value := ingot.member_json(of_tenant, of_user);
        INSERT INTO ingot.members (tenant, "user", role, created_at, created_by)
        VALUES (of_tenant, of_user, new_role, ingot.clock(), act->>'who')
        ON CONFLICT (tenant, "user") DO UPDATE SET role = excluded.role;
        DELETE FROM ingot.invitations AS i WHERE i.tenant = of_tenant
            AND i.email = (SELECT u.email_lower FROM ingot.users AS u WHERE u.id = of_user AND u.email_verified);
    ELSE
        SELECT ingot.member_json(of_tenant, i.id) INTO old_value FROM ingot.invitations AS i
        WHERE i.tenant = of_tenant AND i.email = of_email;
        INSERT INTO ingot.invitations AS i (id, tenant, email, role, created_at, created_by)
        VALUES (new_invitation, of_tenant, of_email, new_role, ingot.clock(), act->>'who')
        ON CONFLICT (tenant, email) DO UPDATE SET role = excluded.role
        RETURNING i.id INTO member;
    END IF;
    new_value := ingot.member_json(of_tenant, member);
    IF old_value IS NULL OR new_value::jsonb <> old_value::jsonb THEN
        PERFORM ingot.add_audit_entry(act, of_tenant, 'member.put', format('member/%s', member), old_value, new_value);
    END IF;
    RETURN new_value;
END
$$;

-- Remove the role of a person, or an invitation, and end the tokens that it allowed. Returns the former member.
CREATE OR REPLACE FUNCTION ingot.remove_member(of_tenant uuid, of_id uuid, act json) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    now bigint := ingot.clock();
    old_value json;
    invited text;
BEGIN
    PERFORM ingot.expect_tenant(of_tenant);
    IF ingot.is_in_audit_log(act) THEN
        RETURN (SELECT a.before FROM ingot.audit AS a WHERE a.id = (act->>'id')::uuid);
    END IF;
    old_value := ingot.member_json(of_tenant, of_id);
    IF old_value IS NULL THEN
        PERFORM ingot.refuse('IN032', format('there is no member ''%s'' in this tenant', of_id));
    END IF;
    DELETE FROM ingot.members AS m WHERE m.tenant = of_tenant AND m."user" = of_id;
    IF FOUND THEN
        DELETE FROM ingot.invitations AS i WHERE i.tenant = of_tenant
            AND i.email = (SELECT u.email_lower FROM ingot.users AS u WHERE u.id = of_id AND u.email_verified);
        UPDATE ingot.tokens AS t SET revoked_at = now
        WHERE t."user" = of_id AND t.tenant = of_tenant AND t.revoked_at IS NULL;
    ELSE
        DELETE FROM ingot.invitations AS i WHERE i.tenant = of_tenant AND i.id = of_id RETURNING i.email INTO invited;
        IF invited IS NULL THEN
            PERFORM ingot.refuse('IN033', format('the role of ''%s'' comes from a group', of_id));
        END IF;
        -- People with a role of their own in the tenant keep their tokens.
        UPDATE ingot.tokens AS t SET revoked_at = now
        WHERE t."user" = ANY (ARRAY(
            SELECT u.id FROM ingot.users AS u WHERE u.email_lower = invited AND u.email_verified
                AND NOT EXISTS (SELECT FROM ingot.members AS m WHERE m.tenant = of_tenant AND m."user" = u.id)
        )) AND t.tenant = of_tenant AND t.revoked_at IS NULL;
    END IF;
    PERFORM ingot.add_audit_entry(act, of_tenant, 'member.removed', format('member/%s', of_id), old_value,
        ingot.member_json(of_tenant, of_id));
    RETURN old_value;
END
$$;

CREATE OR REPLACE FUNCTION ingot.find_member(of_tenant uuid, of_id uuid) RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT ingot.member_json(of_tenant, of_id)
$$;

-- All members of a tenant, including invitations, by id, after one. At most `rows_max` members of each group are
-- read.
CREATE OR REPLACE FUNCTION ingot.list_members(of_tenant uuid, after uuid, rows_max integer) RETURNS SETOF text
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT ingot.member_json(of_tenant, o.id)
    FROM (
        SELECT f.id
        FROM (
            (SELECT m."user" AS id FROM ingot.members AS m WHERE m.tenant = of_tenant AND m."user" > after
            ORDER BY m."user" LIMIT rows_max)
            UNION
            (SELECT i.id FROM ingot.invitations AS i WHERE i.tenant = of_tenant AND i.id > after ORDER BY i.id LIMIT rows_max)
            UNION
            SELECT p."user" FROM ingot.tenant_groups AS t CROSS JOIN LATERAL (
                SELECT g."user" FROM ingot.user_groups AS g WHERE g.name = t.name AND g."user" > after
                ORDER BY g."user" LIMIT rows_max
            ) AS p WHERE t.tenant = of_tenant
        ) AS f
        ORDER BY f.id LIMIT rows_max
    ) AS o
    ORDER BY o.id
$$;

-- Tokens of a person in all tenants; newest first, below an id.
CREATE OR REPLACE FUNCTION ingot.list_user_tokens(of_user uuid, before_id uuid, rows_max integer) RETURNS SETOF text
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT json_build_object(
        'id', t.id, 'tenant', t.tenant, 'digest', '', 'description', t.description,
        'grants', t.grants::json, 'limits', t.limits::json, 'ending', t.ending, 'created_at', t.created_at,
        'created_by', t.created_by, 'expires_at', t.expires_at, 'last_used_at', t.last_used_at, 'revoked_at', t.revoked_at,
        'user', t."user")
    FROM ingot.tokens AS t WHERE t."user" = of_user AND t.id < before_id
    ORDER BY t.id DESC LIMIT rows_max
$$;
