-- Publish an event inside an application's own transaction. It stands in the log where the transaction began to write.

-- The data is kept as it is written.
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
    said text := btrim(coalesce(data, 'null')::text, E' \t\n\r');
    told record;
BEGIN
    IF name IS NULL OR length(name) > {events.checks.NAME_CHARS_MAX} OR name !~ '^[a-z0-9][a-z0-9_-]*([.][a-z0-9][a-z0-9_-]*)*$' THEN
        PERFORM ingot.refuse_input(format('the event name ''%s'' is not usable', left(name, 64)),
            'Use up to {events.checks.NAME_CHARS_MAX} lower-case letters, digits, - and _ in segments with dots between, as in order.paid.');
    ELSIF split_part(name, '.', 1) IN ('audit', 'batch', 'blob', 'ingot', 'job', 'quota', 'stats', 'trigger', 'worker')
        OR name IN ('end', 'error', 'gap', 'message', 'open') THEN
        PERFORM ingot.refuse_input(format('the event name ''%s'' is one of Ingot''s own', name),
            'Begin with another segment than audit, batch, blob, ingot, job, quota, stats, trigger, worker.');
    ELSIF length(dedupe_key) NOT BETWEEN 1 AND {events.checks.KEY_CHARS_MAX} THEN
        PERFORM ingot.refuse_input(format('the dedupe key has %s characters; it goes from 1 to {events.checks.KEY_CHARS_MAX}', length(dedupe_key)));
    END IF;
    PERFORM ingot.check_json(said::json, 'data', {events.checks.DATA_BYTES_MAX});
    PERFORM ingot.expect_places(tenant, 1);
    IF dedupe_key IS NOT NULL THEN
        PERFORM ingot.pass_gates(ARRAY[ingot.gate('event', tenant, dedupe_key)]);
    END IF;
    SELECT p.* INTO told FROM ingot.publish(
        ARRAY[tenant], ARRAY[name], ARRAY[said], ARRAY[dedupe_key],
        ARRAY[CASE WHEN dedupe_key IS NOT NULL THEN
            sha256(convert_to(name || E'\n', 'UTF8') || ingot.json_digest(said::json)) END],
        86400000000
    ) AS p;
    IF NOT told.same THEN
        PERFORM ingot.refuse_app('IN042', 'idempotency_mismatch', 'This idempotency key was used before, for something else.',
            'Use a new key for something new; nothing was changed.');
    END IF;
    RETURN QUERY SELECT lpad(to_hex(told.event), 16, '0'), told.created;
END
$$;

-- The same for what is jsonb already.
CREATE OR REPLACE FUNCTION ingot.publish_event(name text, data jsonb DEFAULT 'null', dedupe_key text DEFAULT NULL)
RETURNS TABLE (id text, created boolean)
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$ SELECT * FROM ingot.publish_json(name, data::json, dedupe_key) $$;
