-- Tenants. Their rows are shown by these functions only: who asks for a tenant does not work in one yet.

-- The groups whose people have a role in a tenant, each with the role.
CREATE OR REPLACE FUNCTION ingot.groups_of(of_tenant uuid) RETURNS json
LANGUAGE sql STABLE
AS $$
    SELECT coalesce(json_object_agg(g.name, g.role), '{}') FROM ingot.tenant_groups AS g WHERE g.tenant = of_tenant
$$;

-- A tenant as the audit log tells it.
CREATE OR REPLACE FUNCTION ingot.tenant_told(t ingot.tenants) RETURNS json
LANGUAGE sql STABLE
AS $$
    SELECT json_build_object(
        'id', t.id, 'slug', t.slug, 'weight', t.weight, 'time_zone', t.time_zone, 'limits', t.limits::json,
        'groups', ingot.groups_of(t.id))
$$;

CREATE OR REPLACE FUNCTION ingot.create_tenant(
    id uuid, slug text, weight integer, time_zone text, limits text, act text, groups json DEFAULT '{}'
) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    made ingot.tenants;
BEGIN
    INSERT INTO ingot.tenants AS t VALUES (id, slug, weight, time_zone, limits) ON CONFLICT DO NOTHING
    RETURNING t.* INTO made;
    -- The same call sent again, after its answer was lost, finds its own row.
    IF FOUND THEN
        INSERT INTO ingot.tenant_groups (tenant, name, role) SELECT id, g.key, g.value FROM json_each_text(groups) AS g;
        PERFORM ingot.note_act(act::json, id, 'tenant.created', 'tenant/' || slug, NULL, ingot.tenant_told(made));
    ELSIF NOT EXISTS (SELECT FROM ingot.tenants AS t WHERE t.id = id AND t.slug = slug) THEN
        PERFORM ingot.refuse('IN007', format('there is a tenant ''%s'' already', slug));
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION ingot.change_tenant(
    of_tenant uuid, new_slug text, new_weight integer, new_time_zone text, new_limits text, act text,
    new_groups json DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    known ingot.tenants;
    changed ingot.tenants;
    was json;
    becomes json;
BEGIN
    SELECT t.* INTO known FROM ingot.tenants AS t WHERE t.id = of_tenant FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        PERFORM ingot.refuse('IN006', 'there is no such tenant');
    END IF;
    was := ingot.tenant_told(known);
    UPDATE ingot.tenants AS t SET
        slug = coalesce(new_slug, t.slug), weight = coalesce(new_weight, t.weight),
        time_zone = coalesce(new_time_zone, t.time_zone), limits = coalesce(new_limits, t.limits)
    WHERE t.id = of_tenant RETURNING t.* INTO changed;
    IF new_groups IS NOT NULL THEN
        DELETE FROM ingot.tenant_groups AS g WHERE g.tenant = of_tenant;
        INSERT INTO ingot.tenant_groups (tenant, name, role)
        SELECT of_tenant, g.key, g.value FROM json_each_text(new_groups) AS g;
    END IF;
    becomes := ingot.tenant_told(changed);
    IF becomes::jsonb <> was::jsonb THEN
        PERFORM ingot.note_act(act::json, of_tenant, 'tenant.changed', 'tenant/' || known.slug, was, becomes);
    END IF;
EXCEPTION WHEN unique_violation THEN
    PERFORM ingot.refuse('IN007', format('there is a tenant ''%s'' already', new_slug));
END
$$;

-- The tenants with this id, or with this slug.
CREATE OR REPLACE FUNCTION ingot.find_tenants(by_id uuid, by_slug text)
RETURNS TABLE (id text, slug text, weight integer, time_zone text, limits text, groups text)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT t.id::text, t.slug, t.weight, t.time_zone, t.limits, ingot.groups_of(t.id)::text FROM ingot.tenants AS t
    WHERE t.id = by_id OR t.slug = by_slug
$$;

-- Tenants by slug, from behind one; all of them, or so many.
CREATE OR REPLACE FUNCTION ingot.list_tenants(after text, most integer)
RETURNS TABLE (id text, slug text, weight integer, time_zone text, limits text, groups text)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT t.id::text, t.slug, t.weight, t.time_zone, t.limits, ingot.groups_of(t.id)::text FROM ingot.tenants AS t
    WHERE t.slug COLLATE "C" > after
    ORDER BY t.slug COLLATE "C" LIMIT most
$$;
