-- Tenants. Only these functions read the rows: a caller that looks up a tenant has no current tenant yet.

-- The groups with a role in a tenant, each with the role, as JSON.
CREATE OR REPLACE FUNCTION ingot.tenant_groups_json(of_tenant uuid) RETURNS json
LANGUAGE sql STABLE
AS $$
    SELECT coalesce(json_object_agg(g.name, g.role), '{}') FROM ingot.tenant_groups AS g WHERE g.tenant = of_tenant
$$;

-- A tenant as JSON for the audit log.
CREATE OR REPLACE FUNCTION ingot.tenant_audit_json(t ingot.tenants) RETURNS json
LANGUAGE sql STABLE
AS $$
    SELECT json_build_object(
        'id', t.id, 'slug', t.slug, 'weight', t.weight, 'time_zone', t.time_zone, 'limits', t.limits::json,
        'groups', ingot.tenant_groups_json(t.id))
$$;

CREATE OR REPLACE FUNCTION ingot.create_tenant(
    id uuid, slug text, weight integer, time_zone text, limits text, act text, groups json DEFAULT '{}'
) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    created ingot.tenants;
BEGIN
    INSERT INTO ingot.tenants AS t VALUES (id, slug, weight, time_zone, limits) ON CONFLICT DO NOTHING
    RETURNING t.* INTO created;
    -- A call that is repeated after its answer was lost finds its own row.
    IF FOUND THEN
        INSERT INTO ingot.type_counts (tenant, types) VALUES (id, 0);
        INSERT INTO ingot.tenant_groups (tenant, name, role) SELECT id, g.key, g.value FROM json_each_text(groups) AS g;
        PERFORM ingot.add_audit_entry(act::json, id, 'tenant.created', 'tenant/' || slug, NULL, ingot.tenant_audit_json(created));
    ELSIF NOT EXISTS (SELECT FROM ingot.tenants AS t WHERE t.id = id AND t.slug = slug) THEN
        PERFORM ingot.refuse('IN007', format('the tenant ''%s'' already exists', slug));
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
    existing ingot.tenants;
    changed ingot.tenants;
    old_value json;
    new_value json;
BEGIN
    SELECT t.* INTO existing FROM ingot.tenants AS t WHERE t.id = of_tenant FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        PERFORM ingot.refuse('IN006', 'there is no such tenant');
    END IF;
    old_value := ingot.tenant_audit_json(existing);
    UPDATE ingot.tenants AS t SET
        slug = coalesce(new_slug, t.slug), weight = coalesce(new_weight, t.weight),
        time_zone = coalesce(new_time_zone, t.time_zone), limits = coalesce(new_limits, t.limits)
    WHERE t.id = of_tenant RETURNING t.* INTO changed;
    IF new_groups IS NOT NULL THEN
        DELETE FROM ingot.tenant_groups AS g WHERE g.tenant = of_tenant;
        INSERT INTO ingot.tenant_groups (tenant, name, role)
        SELECT of_tenant, g.key, g.value FROM json_each_text(new_groups) AS g;
    END IF;
    new_value := ingot.tenant_audit_json(changed);
    IF new_value::jsonb <> old_value::jsonb THEN
        PERFORM ingot.add_audit_entry(act::json, of_tenant, 'tenant.changed', 'tenant/' || existing.slug, old_value, new_value);
    END IF;
EXCEPTION WHEN unique_violation THEN
    PERFORM ingot.refuse('IN007', format('the tenant ''%s'' already exists', new_slug));
END
$$;

-- The tenants with this id or this slug.
CREATE OR REPLACE FUNCTION ingot.find_tenants(by_id uuid, by_slug text)
RETURNS TABLE (id text, slug text, weight integer, time_zone text, limits text, groups text)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT t.id::text, t.slug, t.weight, t.time_zone, t.limits, ingot.tenant_groups_json(t.id)::text FROM ingot.tenants AS t
    WHERE t.id = by_id OR t.slug = by_slug
$$;

-- Tenants ordered by slug, after one slug; all of them if `rows_max` is NULL.
CREATE OR REPLACE FUNCTION ingot.list_tenants(after text, rows_max integer)
RETURNS TABLE (id text, slug text, weight integer, time_zone text, limits text, groups text)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT t.id::text, t.slug, t.weight, t.time_zone, t.limits, ingot.tenant_groups_json(t.id)::text FROM ingot.tenants AS t
    WHERE t.slug COLLATE "C" > after
    ORDER BY t.slug COLLATE "C" LIMIT rows_max
$$;
