-- Publish an event inside a transaction of an application. Its position in the log is that of the transaction's first write.

-- The data is stored as written.
CREATE OR REPLACE FUNCTION ingot.publish_json(name text, data json DEFAULT 'null', dedupe_key text DEFAULT NULL)
RETURNS TABLE (id text, created boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET jit = off
SET extra_float_digits = 1
AS $$
#variable_conflict use_variable
DECLARE
    tenant uuid := ingot.app_tenant();
    data_text text := btrim(coalesce(data, 'null')::text, E' \t\n\r');
    published record;
BEGIN
    IF name IS NULL OR length(name) > {events.checks.NAME_CHARS_MAX}
        OR name !~ '^[a-z0-9][a-z0-9_-]*([.][a-z0-9][a-z0-9_-]*)*$' THEN
        PERFORM ingot.refuse_input(format('the event name ''%s'' is not valid', left(name, 64)),
            'Use up to {events.checks.NAME_CHARS_MAX} lower-case letters, digits, - and _. Separate segments with dots, as in order.paid.');
    ELSIF split_part(name, '.', 1) IN ('audit', 'batch', 'blob', 'ingot', 'job', 'quota', 'stats', 'trigger', 'worker')
        OR name IN ('end', 'error', 'gap', 'message', 'open') THEN
        PERFORM ingot.refuse_input(format('the event name ''%s'' is reserved for Ingot', name),
            'Do not use the names end, error, gap, message, open, nor names that begin with one of audit, batch, blob, ingot, job, quota, stats, trigger, worker.');
    ELSIF length(dedupe_key) NOT BETWEEN 1 AND {events.checks.KEY_CHARS_MAX} THEN
        PERFORM ingot.refuse_input(format('dedupe_key must have 1 to {events.checks.KEY_CHARS_MAX} characters, got %s',
            length(dedupe_key)));
    END IF;
    PERFORM ingot.check_json(data_text::json, 'data', {events.checks.DATA_BYTES_MAX});
    PERFORM ingot.expect_event_capacity(tenant, 1);
    IF dedupe_key IS NOT NULL THEN
        PERFORM ingot.lock_gates(ARRAY[ingot.gate('event', tenant, dedupe_key)]);
    END IF;
    SELECT p.* INTO published FROM ingot.publish(
        ARRAY[tenant], ARRAY[name], ARRAY[data_text], ARRAY[dedupe_key],
        ARRAY[CASE WHEN dedupe_key IS NOT NULL THEN
            sha256(convert_to(name || E'\n', 'UTF8') || ingot.json_digest(data_text::json)) END],
        86400000000
    ) AS p;
    IF NOT published.same THEN
        PERFORM ingot.refuse_app('IN042', 'idempotency_mismatch', 'This dedupe key was already used for a different event.',
            'Use a new key for a new event. Nothing was changed.');
    END IF;
    RETURN QUERY SELECT lpad(to_hex(published.event), 16, '0'), published.created;
END
$$;

-- The same for jsonb.
CREATE OR REPLACE FUNCTION ingot.publish_event(name text, data jsonb DEFAULT 'null', dedupe_key text DEFAULT NULL)
RETURNS TABLE (id text, created boolean)
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$ SELECT * FROM ingot.publish_json(name, data::json, dedupe_key) $$;
