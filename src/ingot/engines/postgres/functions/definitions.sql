-- Make or replace a definition. The tenant of all zeros stands for all tenants.
CREATE OR REPLACE FUNCTION ingot.put_definition(
    of_tenant uuid, type text, definition text, priority integer, max_attempts integer, crash_cap integer,
    timeout_seconds double precision, first_seconds double precision, factor double precision, max_seconds double precision,
    act text
) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    known text;
BEGIN
    IF of_tenant <> '00000000-0000-0000-0000-000000000000'
        AND NOT EXISTS (SELECT FROM ingot.tenants AS t WHERE t.id = of_tenant) THEN
        PERFORM ingot.refuse('IN006', 'there is no such tenant');
    END IF;
    INSERT INTO ingot.definitions AS d
    VALUES (of_tenant, type, definition, priority, max_attempts, crash_cap, timeout_seconds, first_seconds, factor,
        max_seconds)
    ON CONFLICT ON CONSTRAINT definitions_pkey DO NOTHING;
    IF NOT FOUND THEN
        SELECT d.definition INTO known FROM ingot.definitions AS d WHERE d.tenant = of_tenant AND d.type = type FOR UPDATE;
        UPDATE ingot.definitions AS d SET
            definition = definition, priority = priority, max_attempts = max_attempts, crash_cap = crash_cap,
            timeout_seconds = timeout_seconds, first_seconds = first_seconds, factor = factor, max_seconds = max_seconds
        WHERE d.tenant = of_tenant AND d.type = type;
    END IF;
    IF known IS DISTINCT FROM definition THEN
        PERFORM ingot.note_act(act::json, nullif(of_tenant, '00000000-0000-0000-0000-000000000000'), 'definition.put',
            'definition/' || type, known::json, definition::json);
    END IF;
    PERFORM ingot.count_leases();
END
$$;

-- Make the definition of a type for all, or replace it, when what is there is still what is known of it. Answers whether it was.
CREATE OR REPLACE FUNCTION ingot.swap_definition(
    known text, type text, definition text, priority integer, max_attempts integer, crash_cap integer,
    timeout_seconds double precision, first_seconds double precision, factor double precision, max_seconds double precision,
    act text
) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    everybody constant uuid := '00000000-0000-0000-0000-000000000000';
BEGIN
    IF known IS NULL THEN
        INSERT INTO ingot.definitions AS d
        VALUES (everybody, type, definition, priority, max_attempts, crash_cap, timeout_seconds, first_seconds, factor,
            max_seconds)
        ON CONFLICT ON CONSTRAINT definitions_pkey DO NOTHING;
    ELSE
        UPDATE ingot.definitions AS d SET
            definition = definition, priority = priority, max_attempts = max_attempts, crash_cap = crash_cap,
            timeout_seconds = timeout_seconds, first_seconds = first_seconds, factor = factor, max_seconds = max_seconds
        WHERE d.tenant = everybody AND d.type = type AND d.definition = known;
    END IF;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM ingot.note_act(act::json, NULL, 'definition.put', 'definition/' || type, known::json, definition::json);
    PERFORM ingot.count_leases();
    RETURN true;
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
