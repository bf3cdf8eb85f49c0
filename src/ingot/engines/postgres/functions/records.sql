-- Refuse a tenant that does not exist; NULL and the all-zero tenant stand for all. Takes no lock: rows that are added during
-- a removal are cleared later.
CREATE OR REPLACE FUNCTION ingot.expect_tenant(of_tenant uuid) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    IF of_tenant <> '00000000-0000-0000-0000-000000000000'
        AND NOT EXISTS (SELECT FROM ingot.tenants AS t WHERE t.id = of_tenant) THEN
        PERFORM ingot.refuse('IN006', 'there is no such tenant');
    END IF;
END
$$;

-- Refuse another version of a record than the expected one; 0 means that it does not exist.
CREATE OR REPLACE FUNCTION ingot.expect_version(current bigint, expected bigint) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF expected <> current THEN
        PERFORM ingot.refuse('IN071', 'the record has a different version', current::text);
    END IF;
END
$$;

-- Add the audit entry of a changed record, count the change, and notify the other processes.
CREATE OR REPLACE FUNCTION ingot.audit_record_change(
    of_kind text, of_tenant uuid, act text, action text, target text, old_body text, new_body text
) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM ingot.add_audit_entry(act::json, nullif(of_tenant, '00000000-0000-0000-0000-000000000000'), action, target,
        old_body::json, new_body::json);
    UPDATE ingot.record_changes AS c SET changes = c.changes + 1;
    IF of_kind = 'definition' THEN
        PERFORM ingot.create_lease_key_index();
    END IF;
    PERFORM pg_notify('ingot_ready', '');
END
$$;

-- Create or replace a record, and return it. Writers are serialized, so versions and limits are exact. A call that is
-- repeated after its answer was lost finds its own audit entry, and changes nothing.
CREATE OR REPLACE FUNCTION ingot.put_record(
    of_kind text, of_tenant uuid, of_name text, new_body text, new_sealed bytea, expected bigint, records_max bigint,
    act text, action text, target text
) RETURNS TABLE (
    name text, version bigint, body text, created_at bigint, created_by text, updated_at bigint, updated_by text
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
DECLARE
    existing ingot.records;
    now bigint := ingot.clock();
    caller text := act::json ->> 'who';
BEGIN
    PERFORM ingot.expect_tenant(of_tenant);
    PERFORM FROM ingot.record_changes FOR UPDATE;
    SELECT r.* INTO existing FROM ingot.records AS r WHERE r.kind = of_kind AND r.tenant = of_tenant AND r.name = of_name;
    IF NOT EXISTS (SELECT FROM ingot.audit AS a WHERE a.id = (act::json ->> 'id')::uuid) THEN
        PERFORM ingot.expect_version(coalesce(existing.version, 0), expected);
        IF existing.version IS NULL AND records_max <= (
            SELECT count(*) FROM ingot.records AS r WHERE r.kind = of_kind AND r.tenant = of_tenant
        ) THEN
            PERFORM ingot.refuse('IN072', format('there are %s records of the kind %s', records_max, of_kind));
        END IF;
        IF existing.body IS DISTINCT FROM new_body OR existing.sealed IS DISTINCT FROM new_sealed THEN
            INSERT INTO ingot.records AS r (
                kind, tenant, name, version, body, sealed, created_at, created_by, updated_at, updated_by
            )
            VALUES (of_kind, of_tenant, of_name, 1, new_body, new_sealed, now, caller, now, caller)
            ON CONFLICT (kind, tenant, name) DO UPDATE SET version = r.version + 1, body = excluded.body,
                sealed = excluded.sealed, updated_at = excluded.updated_at, updated_by = excluded.updated_by;
            PERFORM ingot.audit_record_change(of_kind, of_tenant, act, action, target, existing.body, new_body);
        END IF;
    END IF;
    RETURN QUERY
    SELECT r.name, r.version, r.body, r.created_at, r.created_by, r.updated_at, r.updated_by
    FROM ingot.records AS r WHERE r.kind = of_kind AND r.tenant = of_tenant AND r.name = of_name;
END
$$;

-- Delete a record, and return its last state.
CREATE OR REPLACE FUNCTION ingot.delete_record(
    of_kind text, of_tenant uuid, of_name text, expected bigint, act text, action text, target text
) RETURNS TABLE (
    name text, version bigint, body text, created_at bigint, created_by text, updated_at bigint, updated_by text
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
DECLARE
    existing ingot.records;
BEGIN
    PERFORM ingot.expect_tenant(of_tenant);
    PERFORM FROM ingot.record_changes FOR UPDATE;
    SELECT r.* INTO existing FROM ingot.records AS r WHERE r.kind = of_kind AND r.tenant = of_tenant AND r.name = of_name;
    IF NOT FOUND THEN
        PERFORM ingot.refuse('IN070', format('there is no %s %s', of_kind, to_json(of_name)));
    END IF;
    PERFORM ingot.expect_version(existing.version, expected);
    DELETE FROM ingot.records AS r WHERE r.kind = of_kind AND r.tenant = of_tenant AND r.name = of_name;
    PERFORM ingot.audit_record_change(of_kind, of_tenant, act, action, target, existing.body, NULL);
    RETURN QUERY SELECT existing.name, existing.version, existing.body, existing.created_at, existing.created_by,
        existing.updated_at, existing.updated_by;
END
$$;

-- The version and the sealed value of a record.
CREATE OR REPLACE FUNCTION ingot.get_sealed(of_kind text, of_tenant uuid, of_name text)
RETURNS TABLE (version bigint, sealed bytea)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT r.version, r.sealed FROM ingot.records AS r
    WHERE r.kind = of_kind AND r.tenant = of_tenant AND r.name = of_name AND r.sealed IS NOT NULL
$$;

-- The definition of a type for a tenant: its own, or the shared one.
CREATE OR REPLACE FUNCTION ingot.find_definition(of_tenant uuid, of_type text) RETURNS SETOF text
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT d.definition FROM ingot.definitions AS d
    WHERE d.type = of_type AND d.tenant IN (of_tenant, '00000000-0000-0000-0000-000000000000')
    ORDER BY d.tenant DESC LIMIT 1
$$;

-- The definitions of these types of tenants that have a limit key or reuse, each with the place of its type.
CREATE OR REPLACE FUNCTION ingot.find_rules(of_tenants uuid[], of_types text[])
RETURNS TABLE (place integer, definition text)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
BEGIN
    RETURN QUERY
    SELECT o.place::integer, d.definition
    FROM unnest(of_tenants, of_types) WITH ORDINALITY AS o (tenant, type, place)
    CROSS JOIN LATERAL (
        SELECT d.definition, d.rule FROM ingot.definitions AS d
        WHERE d.type = o.type AND d.tenant IN (o.tenant, '00000000-0000-0000-0000-000000000000')
        ORDER BY d.tenant DESC LIMIT 1
    ) AS d
    WHERE d.rule IS NOT NULL;
END
$$;
