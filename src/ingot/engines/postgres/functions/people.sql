-- A person, as JSON.
CREATE OR REPLACE FUNCTION ingot.person_json(of_user uuid) RETURNS json
LANGUAGE sql STABLE
AS $$
    SELECT json_build_object(
        'id', u.id, 'issuer', u.issuer, 'subject', u.subject, 'email', u.email, 'email_verified', u.email_verified,
        'name', u.name, 'picture', u.picture,
        'groups', to_json(ARRAY(SELECT g.name FROM ingot.user_groups AS g WHERE g."user" = u.id ORDER BY g.name)),
        'enabled', u.enabled, 'refused', u.refused, 'created_at', u.created_at, 'signed_in_at', u.signed_in_at)
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

-- The roles of a person in tenants: their own, with `name` NULL, and those of their groups, except where they left.
CREATE OR REPLACE FUNCTION ingot.roles_of_user(of_user uuid) RETURNS TABLE (tenant uuid, role text, name text)
LANGUAGE sql STABLE
AS $$
    SELECT m.tenant, m.role, NULL FROM ingot.members AS m WHERE m."user" = of_user
    UNION ALL
    SELECT t.tenant, t.role, t.name FROM ingot.user_groups AS g JOIN ingot.tenant_groups AS t ON t.name = g.name
    WHERE g."user" = of_user
        AND NOT EXISTS (SELECT FROM ingot.departures AS d WHERE d.tenant = t.tenant AND d."user" = of_user)
$$;

-- A person and their roles. The highest role in a tenant counts; the names of roles sort from highest to lowest.
CREATE OR REPLACE FUNCTION ingot.user_with_roles(of_user uuid) RETURNS json
LANGUAGE sql STABLE
AS $$
    SELECT json_build_object('user', ingot.person_json(u.id), 'roles', coalesce((
        SELECT json_agg(json_build_object('tenant', t.id, 'slug', t.slug, 'role', r.role) ORDER BY t.slug COLLATE "C")
        FROM (
            SELECT o.tenant, min(o.role) AS role FROM ingot.roles_of_user(of_user) AS o GROUP BY o.tenant
        ) AS r JOIN ingot.tenants AS t ON t.id = r.tenant
    ), '[]'::json))
    FROM ingot.users AS u WHERE u.id = of_user
$$;

-- The member of a tenant with this id, a person or an unexpired invitation, as JSON. The highest role counts; the names of
-- roles sort from highest to lowest. In `sources` their own role comes before roles of groups. An invitation shows nothing
-- of the invited person.
CREATE OR REPLACE FUNCTION ingot.member_json(of_tenant uuid, of_id uuid) RETURNS json
LANGUAGE sql STABLE
AS $$
    SELECT json_build_object(
        'id', u.id, 'role', s.role, 'sources', s.sources, 'user', u.id, 'email', u.email, 'name', u.name,
        'picture', u.picture, 'invited', false, 'expires_at', NULL)
    FROM ingot.users AS u CROSS JOIN LATERAL (
        SELECT min(o.role) AS role,
            json_agg(json_strip_nulls(json_build_object('role', o.role, 'group', o.name)) ORDER BY o.name NULLS FIRST) AS sources
        FROM (
            SELECT m.role, NULL AS name FROM ingot.members AS m WHERE m.tenant = of_tenant AND m."user" = u.id
            UNION ALL
            SELECT t.role, t.name FROM ingot.tenant_groups AS t
                JOIN ingot.user_groups AS g ON g."user" = u.id AND g.name = t.name
            WHERE t.tenant = of_tenant
                AND NOT EXISTS (SELECT FROM ingot.departures AS d WHERE d.tenant = of_tenant AND d."user" = u.id)
        ) AS o
    ) AS s
    WHERE u.id = of_id AND s.role IS NOT NULL
    UNION ALL
    SELECT json_build_object(
        'id', i.id, 'role', i.role, 'sources', json_build_array(json_build_object('role', i.role)), 'user', i."user",
        'email', i.email, 'name', NULL, 'picture', NULL, 'invited', true, 'expires_at', i.expires_at)
    FROM ingot.invitations AS i WHERE i.id = of_id AND i.tenant = of_tenant AND i.expires_at > ingot.clock()
$$;

-- A member as JSON for the audit log, with its time as text.
CREATE OR REPLACE FUNCTION ingot.member_audit_json(member json) RETURNS json
LANGUAGE sql IMMUTABLE
AS $$
    SELECT (member::jsonb || jsonb_build_object('expires_at', ingot.iso_timestamp((member->>'expires_at')::bigint)))::json
$$;

-- Record a change of a member or an invitation, if there was one.
CREATE OR REPLACE FUNCTION ingot.audit_member(
    act json, of_tenant uuid, action text, of_id uuid, old_value json, new_value json
) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    IF old_value::jsonb IS DISTINCT FROM new_value::jsonb THEN
        PERFORM ingot.add_audit_entry(act, of_tenant, action, format('member/%s', of_id),
            ingot.member_audit_json(old_value), ingot.member_audit_json(new_value));
    END IF;
END
$$;

-- Refuse a person who does not exist or is disabled. The lock makes `enable_user` and other calls for the person wait.
CREATE OR REPLACE FUNCTION ingot.expect_user(of_user uuid) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM FROM ingot.users AS u WHERE u.id = of_user AND u.enabled FOR NO KEY UPDATE;
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

-- Sign a person in, and return them. A repeated call finds its own rows. A session that replaces one of the same person acts
-- in the same tenant. Otherwise it acts in the tenant that the person chose last. Signing in with a role in exactly one
-- tenant chooses it, if the person has never chosen one.
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
    chosen uuid;
BEGIN
    INSERT INTO ingot.users AS u
        (id, issuer, subject, email, email_lower, email_verified, name, picture, enabled, created_at, signed_in_at)
    VALUES (new_user, person->>'issuer', person->>'subject', person->>'email', new_email_lower,
        (person->>'email_verified')::boolean, person->>'name', person->>'picture', true, now, now)
    ON CONFLICT (issuer, subject) DO UPDATE SET
        email = excluded.email, email_lower = excluded.email_lower, email_verified = excluded.email_verified,
        name = excluded.name, picture = excluded.picture, signed_in_at = excluded.signed_in_at, refused = false
    WHERE u.enabled
    RETURNING u.id INTO user_id;
    IF user_id IS NULL THEN
        PERFORM ingot.refuse('IN030', 'an operator has disabled this person');
    END IF;
    DELETE FROM ingot.user_groups AS g WHERE g."user" = user_id;
    INSERT INTO ingot.user_groups ("user", name)
    SELECT DISTINCT user_id, g.name FROM json_array_elements_text(person->'groups') AS g (name);
    SELECT s.tenant INTO chosen FROM ingot.sessions AS s WHERE s.digest = old_digest AND s."user" = user_id;
    IF NOT FOUND THEN
        UPDATE ingot.users AS u SET tenant = coalesce(u.tenant, (
            SELECT min(r.tenant::text)::uuid FROM ingot.roles_of_user(user_id) AS r HAVING count(DISTINCT r.tenant) = 1))
        WHERE u.id = user_id RETURNING u.tenant INTO chosen;
    END IF;
    DELETE FROM ingot.sessions AS s WHERE s.id = ANY (ARRAY(
        SELECT e.id FROM ingot.sessions AS e WHERE e.expires_at <= now
        ORDER BY e.expires_at LIMIT expired_max FOR UPDATE SKIP LOCKED
    ));
    DELETE FROM ingot.sessions AS s WHERE s.digest = old_digest;
    INSERT INTO ingot.sessions (id, digest, "user", created_at, expires_at, last_used_at, address, agent, tenant)
    VALUES (new_session, new_digest, user_id, now, new_expires_at, now, new_address, new_agent, chosen)
    ON CONFLICT (id) DO NOTHING;
    PERFORM ingot.add_audit_entry(
        (act::jsonb || jsonb_build_object('who', 'user:' || user_id,
            'name', coalesce(person->>'email', person->>'name', person->>'subject')))::json,
        NULL, 'session.created', format('session/%s', new_session), NULL,
        json_build_object('user', user_id, 'email', person->>'email'));
    RETURN ingot.person_json(user_id);
END
$$;

-- Mark a known person as refused, update their groups, and end their sessions.
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
    UPDATE ingot.users AS u SET refused = true WHERE u.id = user_id;
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
        'last_used_at', s.last_used_at, 'address', s.address, 'agent', s.agent, 'tenant', s.tenant), 'owner', ingot.user_with_roles(u.id))
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
        'last_used_at', s.last_used_at, 'address', s.address, 'agent', s.agent, 'tenant', s.tenant)
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

-- Make other calls that change members or invitations of a tenant wait until the transaction ends, so that each of them sees
-- the result of the one before. Refuse a tenant that does not exist.
CREATE OR REPLACE FUNCTION ingot.lock_members(of_tenant uuid) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM ingot.lock_tenant(of_tenant);
    PERFORM FROM ingot.tenants AS t WHERE t.id = of_tenant FOR NO KEY UPDATE;
END
$$;

-- Invite a person or an email address, or change the role of a person who has one of their own. Returns the member.
CREATE OR REPLACE FUNCTION ingot.put_member(
    of_tenant uuid, new_role text, of_user uuid, of_email text, new_invitation uuid, act json
) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    now bigint := ingot.clock();
    invitation uuid;
    old_value json;
BEGIN
    PERFORM ingot.lock_members(of_tenant);
    IF EXISTS (SELECT FROM ingot.members AS m WHERE m.tenant = of_tenant AND m."user" = of_user) THEN
        RETURN ingot.change_member(of_tenant, of_user, new_role, act);
    END IF;
    DELETE FROM ingot.invitations AS i WHERE i.tenant = of_tenant AND i.expires_at <= now;
    SELECT i.id INTO invitation FROM ingot.invitations AS i
    WHERE i.tenant = of_tenant AND (i.email = of_email OR i."user" = of_user);
    old_value := ingot.member_json(of_tenant, invitation);
    IF invitation IS NOT NULL THEN
        UPDATE ingot.invitations AS i SET role = new_role, expires_at = now + {identity.people.INVITATION_MICROS}
        WHERE i.id = invitation;
    ELSIF (SELECT count(*) FROM ingot.invitations AS i WHERE i.tenant = of_tenant) >= {identity.people.INVITATIONS_MAX} THEN
        PERFORM ingot.refuse('IN036',
            'the tenant has {identity.people.INVITATIONS_MAX} invitations, which is the maximum');
    ELSE
        invitation := new_invitation;
        INSERT INTO ingot.invitations (id, tenant, email, "user", role, created_at, created_by, expires_at)
        VALUES (invitation, of_tenant, of_email, of_user, new_role, now, act->>'who',
            now + {identity.people.INVITATION_MICROS});
    END IF;
    PERFORM ingot.audit_member(
        act, of_tenant, 'member.put', invitation, old_value, ingot.member_json(of_tenant, invitation));
    RETURN ingot.member_json(of_tenant, invitation);
END
$$;

-- Change the role that was given to a person, or that of an invitation. Returns the member.
CREATE OR REPLACE FUNCTION ingot.change_member(of_tenant uuid, of_id uuid, new_role text, act json) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    old_value json;
BEGIN
    PERFORM ingot.lock_members(of_tenant);
    old_value := ingot.member_json(of_tenant, of_id);
    IF old_value IS NULL THEN
        PERFORM ingot.refuse('IN032', format('there is no member ''%s'' in this tenant', of_id));
    END IF;
    UPDATE ingot.members AS m SET role = new_role WHERE m.tenant = of_tenant AND m."user" = of_id;
    IF NOT FOUND THEN
        UPDATE ingot.invitations AS i SET role = new_role WHERE i.tenant = of_tenant AND i.id = of_id;
        IF NOT FOUND THEN
            PERFORM ingot.refuse('IN033', format('the role of ''%s'' comes from a group', of_id));
        END IF;
    END IF;
    PERFORM ingot.audit_member(act, of_tenant, 'member.put', of_id, old_value, ingot.member_json(of_tenant, of_id));
    RETURN ingot.member_json(of_tenant, of_id);
END
$$;

-- Remove the role of a person, or an invitation, and end the tokens that it allowed. Returns the former member.
CREATE OR REPLACE FUNCTION ingot.remove_member(of_tenant uuid, of_id uuid, act json) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    old_value json;
BEGIN
    PERFORM ingot.lock_members(of_tenant);
    IF ingot.is_in_audit_log(act) THEN
        RETURN ingot.audited_member(act);
    END IF;
    old_value := ingot.member_json(of_tenant, of_id);
    IF old_value IS NULL THEN
        PERFORM ingot.refuse('IN032', format('there is no member ''%s'' in this tenant', of_id));
    END IF;
    DELETE FROM ingot.members AS m WHERE m.tenant = of_tenant AND m."user" = of_id;
    IF FOUND THEN
        DELETE FROM ingot.invitations AS i WHERE i.tenant = of_tenant AND (i."user" = of_id
            OR i.email = (SELECT u.email_lower FROM ingot.users AS u WHERE u.id = of_id AND u.email_verified));
        PERFORM ingot.revoke_tokens_of_user(of_id, of_tenant);
    ELSE
        DELETE FROM ingot.invitations AS i WHERE i.tenant = of_tenant AND i.id = of_id;
        IF NOT FOUND THEN
            PERFORM ingot.refuse('IN033', format('the role of ''%s'' comes from a group', of_id));
        END IF;
    END IF;
    PERFORM ingot.audit_member(act, of_tenant, 'member.removed', of_id, old_value, ingot.member_json(of_tenant, of_id));
    RETURN old_value;
END
$$;

-- Revoke the tokens of a person in a tenant.
CREATE OR REPLACE FUNCTION ingot.revoke_tokens_of_user(of_user uuid, of_tenant uuid) RETURNS void
LANGUAGE sql VOLATILE
AS $$
    UPDATE ingot.tokens AS t SET revoked_at = ingot.clock()
    WHERE t."user" = of_user AND t.tenant = of_tenant AND t.revoked_at IS NULL
$$;

-- The member before an act that was recorded earlier: the call is repeated because its answer was lost.
CREATE OR REPLACE FUNCTION ingot.audited_member(act json) RETURNS text
LANGUAGE sql STABLE
AS $$
    SELECT (a.before::jsonb || jsonb_build_object('expires_at',
        (extract(epoch FROM (a.before::json->>'expires_at')::timestamptz) * 1000000)::bigint))::text
    FROM ingot.audit AS a WHERE a.id = (act->>'id')::uuid
$$;

-- Remove an invitation if it is for this person or for their verified email, and return its tenant and role.
CREATE OR REPLACE FUNCTION ingot.take_invitation(of_id uuid, of_user uuid) RETURNS TABLE (tenant uuid, role text)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY DELETE FROM ingot.invitations AS i USING ingot.users AS u
    WHERE i.id = of_id AND u.id = of_user AND u.enabled AND NOT u.refused AND i.expires_at > ingot.clock()
        AND (i."user" = of_user OR u.email_verified AND i.email = u.email_lower)
    RETURNING i.tenant, i.role;
    IF NOT FOUND THEN
        PERFORM ingot.refuse('IN035', format('there is no invitation ''%s'' for you', of_id));
    END IF;
END
$$;

-- Give a person the role of an invitation, and return the member. Of two roles the higher one counts.
CREATE OR REPLACE FUNCTION ingot.accept_invitation(of_id uuid, of_user uuid, act json) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    in_tenant uuid;
    new_role text;
    old_value json;
BEGIN
    IF ingot.is_in_audit_log(act) THEN
        RETURN (SELECT ingot.member_json(a.tenant, of_user) FROM ingot.audit AS a WHERE a.id = (act->>'id')::uuid);
    END IF;
    PERFORM ingot.lock_members((SELECT i.tenant FROM ingot.invitations AS i WHERE i.id = of_id));
    SELECT i.tenant, i.role INTO in_tenant, new_role FROM ingot.take_invitation(of_id, of_user) AS i;
    old_value := ingot.member_json(in_tenant, of_user);
    DELETE FROM ingot.departures AS d WHERE d.tenant = in_tenant AND d."user" = of_user;
    INSERT INTO ingot.members AS m (tenant, "user", role, created_at, created_by)
    VALUES (in_tenant, of_user, new_role, ingot.clock(), act->>'who')
    ON CONFLICT (tenant, "user") DO UPDATE SET role = least(m.role, excluded.role);
    PERFORM ingot.add_audit_entry(act, in_tenant, 'invitation.accepted', format('member/%s', of_user),
        ingot.member_audit_json(old_value), ingot.member_audit_json(ingot.member_json(in_tenant, of_user)));
    RETURN ingot.member_json(in_tenant, of_user);
END
$$;

CREATE OR REPLACE FUNCTION ingot.decline_invitation(of_id uuid, of_user uuid, act json) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    in_tenant uuid;
    old_value json;
BEGIN
    IF ingot.is_in_audit_log(act) THEN
        RETURN;
    END IF;
    PERFORM ingot.lock_members((SELECT i.tenant FROM ingot.invitations AS i WHERE i.id = of_id));
    SELECT ingot.member_json(i.tenant, i.id) INTO old_value FROM ingot.invitations AS i WHERE i.id = of_id;
    SELECT i.tenant INTO in_tenant FROM ingot.take_invitation(of_id, of_user) AS i;
    PERFORM ingot.audit_member(act, in_tenant, 'invitation.declined', of_id, old_value, NULL);
END
$$;

-- Invitations of a person and of their verified email that have not expired, by id.
CREATE OR REPLACE FUNCTION ingot.list_invitations(of_user uuid, rows_max integer) RETURNS SETOF text
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT json_build_object(
        'id', i.id, 'tenant', t.id, 'slug', t.slug, 'role', i.role, 'created_at', i.created_at, 'expires_at', i.expires_at)
    FROM (
        (SELECT a.* FROM ingot.invitations AS a WHERE a."user" = of_user AND a.expires_at > ingot.clock()
        ORDER BY a.id LIMIT rows_max)
        UNION ALL
        (SELECT b.* FROM ingot.users AS u JOIN ingot.invitations AS b ON b.email = u.email_lower
        WHERE u.id = of_user AND u.email_verified AND b.expires_at > ingot.clock()
        ORDER BY b.id LIMIT rows_max)
    ) AS i JOIN ingot.tenants AS t ON t.id = i.tenant
    ORDER BY i.id LIMIT rows_max
$$;

-- Remove all roles of a person in a tenant, and end the tokens that they allowed. Returns the former member.
CREATE OR REPLACE FUNCTION ingot.leave_tenant(of_tenant uuid, of_user uuid, act json) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    old_value json;
BEGIN
    PERFORM ingot.lock_members(of_tenant);
    IF ingot.is_in_audit_log(act) THEN
        RETURN ingot.audited_member(act);
    END IF;
    old_value := ingot.member_json(of_tenant, of_user);
    IF old_value IS NULL OR (old_value->>'invited')::boolean THEN
        PERFORM ingot.refuse('IN032', format('there is no member ''%s'' in this tenant', of_user));
    END IF;
    DELETE FROM ingot.members AS m WHERE m.tenant = of_tenant AND m."user" = of_user;
    IF ingot.member_json(of_tenant, of_user) IS NOT NULL THEN  -- A role by group is left.
        INSERT INTO ingot.departures (tenant, "user", left_at) VALUES (of_tenant, of_user, ingot.clock())
        ON CONFLICT DO NOTHING;
    END IF;
    PERFORM ingot.revoke_tokens_of_user(of_user, of_tenant);
    PERFORM ingot.audit_member(act, of_tenant, 'member.left', of_user, old_value, NULL);
    RETURN old_value;
END
$$;

-- Let a session act in a tenant, and later sessions of the person, too.
CREATE OR REPLACE FUNCTION ingot.choose_tenant(of_session uuid, of_user uuid, of_tenant uuid) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM ingot.expect_tenant(of_tenant);
    UPDATE ingot.users AS u SET tenant = of_tenant WHERE u.id = of_user;
    UPDATE ingot.sessions AS s SET tenant = of_tenant WHERE s.id = of_session AND s."user" = of_user;
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
            (SELECT i.id FROM ingot.invitations AS i
            WHERE i.tenant = of_tenant AND i.id > after AND i.expires_at > ingot.clock() ORDER BY i.id LIMIT rows_max)
            UNION
            SELECT p."user" FROM ingot.tenant_groups AS t CROSS JOIN LATERAL (
                SELECT g."user" FROM ingot.user_groups AS g WHERE g.name = t.name AND g."user" > after
                    AND NOT EXISTS (SELECT FROM ingot.departures AS d WHERE d.tenant = of_tenant AND d."user" = g."user")
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
