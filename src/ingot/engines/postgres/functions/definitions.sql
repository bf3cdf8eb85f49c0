-- Make or replace a definition. The tenant of all zeros stands for all tenants.
CREATE OR REPLACE FUNCTION ingot.put_definition(
    of_tenant uuid, type text, definition text, priority integer, max_attempts integer, crash_cap integer,
    timeout_seconds double precision, first_seconds double precision, factor double precision, max_seconds double precision
) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
BEGIN
    IF of_tenant <> '00000000-0000-0000-0000-000000000000'
        AND NOT EXISTS (SELECT FROM ingot.tenants AS t WHERE t.id = of_tenant) THEN
        PERFORM ingot.refuse('IN006', 'there is no such tenant');
    END IF;
    INSERT INTO ingot.definitions AS d
    VALUES (of_tenant, type, definition, priority, max_attempts, crash_cap, timeout_seconds, first_seconds, factor,
        max_seconds)
    ON CONFLICT ON CONSTRAINT definitions_pkey DO UPDATE SET
        definition = excluded.definition, priority = excluded.priority, max_attempts = excluded.max_attempts,
        crash_cap = excluded.crash_cap, timeout_seconds = excluded.timeout_seconds, first_seconds = excluded.first_seconds, factor = excluded.factor,
        max_seconds = excluded.max_seconds;
    PERFORM ingot.count_leases();
END
$$;

-- The definitions a tenant can see, of one type or of all: its own and those for all.
CREATE OR REPLACE FUNCTION ingot.find_definitions(of_tenant uuid, of_type text)
RETURNS TABLE (definition text)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT d.definition FROM ingot.definitions AS d
    WHERE d.tenant IN (of_tenant, '00000000-0000-0000-0000-000000000000') AND (of_type IS NULL OR d.type = of_type)
    ORDER BY d.type, d.tenant
$$;
