-- A time in microseconds as an ISO 8601 text.
CREATE OR REPLACE FUNCTION ingot.iso_timestamp(micros bigint) RETURNS text
LANGUAGE sql IMMUTABLE
AS $$
    SELECT to_char('epoch'::timestamp + micros * interval '1 microsecond',
        CASE WHEN micros % 1000000 = 0 THEN 'YYYY-MM-DD"T"HH24:MI:SS"Z"' ELSE 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"' END)
$$;

-- Add an audit entry in the transaction of the change. `act` has the ID of the entry and the caller's identity and address.
CREATE OR REPLACE FUNCTION ingot.add_audit_entry(
    act json, of_tenant uuid, new_action text, new_target text, old_value json, new_value json
) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    INSERT INTO ingot.audit (id, tenant, at, who, name, action, target, address, request_id, before, after)
    VALUES ((act->>'id')::uuid, of_tenant, ingot.clock(), act->>'who', act->>'name', new_action, new_target,
        act->>'address', act->>'request_id', coalesce(old_value::text, 'null'), coalesce(new_value::text, 'null'))
    ON CONFLICT (id) DO NOTHING;
END
$$;

-- Audit entries of a tenant, or all entries; newest first, below an id.
CREATE OR REPLACE FUNCTION ingot.list_audit_entries(
    of_tenant uuid, of_action text, of_who text, of_target text, below uuid, rows_max integer
) RETURNS SETOF text
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT json_build_object(
        'id', a.id, 'tenant', a.tenant, 'at', a.at, 'who', a.who, 'name', a.name, 'action', a.action, 'target', a.target,
        'address', a.address, 'request_id', a.request_id, 'before', a.before::json, 'after', a.after::json)
    FROM ingot.audit AS a
    WHERE (of_tenant IS NULL OR a.tenant = of_tenant) AND a.id < below AND (of_action IS NULL OR a.action = of_action)
        AND (of_who IS NULL OR a.who = of_who) AND (of_target IS NULL OR a.target = of_target)
    ORDER BY a.id DESC LIMIT rows_max
$$;
