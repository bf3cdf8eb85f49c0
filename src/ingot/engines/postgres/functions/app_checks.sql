-- Validation of the jobs and events of an application, with the same rules, codes and hints as the API.

-- Refuse a call of an application. The detail is JSON with the error code and further values for programs.
CREATE OR REPLACE FUNCTION ingot.refuse_app(state text, code text, message text, hint text, details jsonb DEFAULT '{}')
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION '%', message
        USING ERRCODE = state, DETAIL = (jsonb_build_object('code', code) || details)::text, HINT = hint;
END
$$;

CREATE OR REPLACE FUNCTION ingot.refuse_input(message text, hint text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM ingot.refuse_app('IN040', 'invalid_input', message,
        coalesce(hint, 'Correct the value and try again. Nothing was changed.'));
END
$$;

-- Refuse JSON that is too large or that not every decoder can read: strings must be Unicode without NUL, numbers must be
-- doubles, and the nesting is limited. Only texts that could break these rules are checked value by value.
CREATE OR REPLACE FUNCTION ingot.check_json(input json, field text, bytes_max integer) RETURNS void
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    json_text text := input::text;
BEGIN
    IF octet_length(convert_to(json_text, 'UTF8')) > bytes_max THEN
        IF field = 'data' THEN
            PERFORM ingot.refuse_app('IN045', 'event_too_large', format('data must have at most %s bytes, got %s',
                bytes_max, octet_length(convert_to(json_text, 'UTF8'))),
                'Store the data elsewhere, for example as a blob, and put its ID in the event. Nothing was changed.');
        END IF;
        PERFORM ingot.refuse_app('IN041', 'payload_too_large', format('%s must have at most %s bytes, got %s', field,
            bytes_max, octet_length(convert_to(json_text, 'UTF8'))),
            'Store the data as a blob and pass it as an input. Nothing was changed.');
    END IF;
    PERFORM input::jsonb;
    IF json_text ~ '[eE][+]?[0-9]{3}|[0-9]{255}' OR length(translate(json_text, '[{', '')) + 200 < length(json_text) THEN
        PERFORM ingot.canonical_json(input);
    END IF;
EXCEPTION WHEN data_exception OR untranslatable_character OR numeric_value_out_of_range OR invalid_text_representation THEN
    PERFORM ingot.refuse_input(format('%s is not valid JSON: %s', field, SQLERRM));
END
$$;

-- A string of 1 to `chars_max` characters.
CREATE OR REPLACE FUNCTION ingot.check_text(input json, field text, chars_max integer DEFAULT {jobs.checks.KEY_CHARS_MAX})
RETURNS text
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    value text;
BEGIN
    IF json_typeof(input) <> 'string' THEN
        PERFORM ingot.refuse_input(format('%s must be a string, got %s', field, json_typeof(input)));
    END IF;
    value := input #>> '{}';
    IF length(value) NOT BETWEEN 1 AND chars_max THEN
        PERFORM ingot.refuse_input(format('%s must have 1 to %s characters, got %s', field, chars_max, length(value)));
    END IF;
    RETURN value;
END
$$;

CREATE OR REPLACE FUNCTION ingot.check_texts(input json, field text, items_max integer, chars_max integer) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    IF json_typeof(input) <> 'array' THEN
        PERFORM ingot.refuse_input(format('%s must be a list, got %s', field, json_typeof(input)));
    ELSIF json_array_length(input) > items_max THEN
        PERFORM ingot.refuse_input(format('%s must have at most %s elements, got %s', field, items_max,
            json_array_length(input)));
    END IF;
    RETURN ARRAY(
        SELECT ingot.check_text(e, field, chars_max) FROM json_array_elements(input) WITH ORDINALITY AS e (e, n) ORDER BY n
    );
END
$$;

CREATE OR REPLACE FUNCTION ingot.check_number(input json, field text, lowest integer, highest integer, hint text DEFAULT NULL)
RETURNS integer
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    IF json_typeof(input) <> 'number' OR input::text !~ '^[[:space:]]*-?[0-9]+[[:space:]]*$' THEN
        PERFORM ingot.refuse_input(format('%s must be an integer, got %s', field, left(input::text, 64)), hint);
    ELSIF input::text::numeric NOT BETWEEN lowest AND highest THEN
        PERFORM ingot.refuse_input(format('%s must be between %s and %s, got %s', field, lowest, highest,
            left(input::text, 64)), hint);
    END IF;
    RETURN input::text::integer;
END
$$;

-- A time in microseconds. Times before 1970 become 0.
CREATE OR REPLACE FUNCTION ingot.check_timestamp(input json) RETURNS bigint
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    time_text text := CASE WHEN json_typeof(input) = 'string' THEN ingot.check_text(input, 'run_at') END;
    micros numeric;
BEGIN
    IF time_text !~* '^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]([.][0-9]+)?(Z|[+-][0-9]{2}:?[0-9]{2})$' THEN
        time_text := NULL;
    END IF;
    micros := extract(epoch FROM time_text::timestamptz) * 1000000;
    IF micros IS NULL OR micros > {jobs.checks.TIMESTAMP_MAX} THEN
        PERFORM ingot.refuse_input(format('run_at must be a time with an offset before the year 9999, got %s',
            left(input::text, 64)));
    END IF;
    RETURN greatest(micros, 0);
EXCEPTION WHEN datetime_field_overflow OR invalid_datetime_format OR invalid_time_zone_displacement_value THEN
    PERFORM ingot.refuse_input(format('run_at must be an existing time, got %s', left(input::text, 64)));
END
$$;

CREATE OR REPLACE FUNCTION ingot.check_delay(input json) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    IF json_typeof(input) <> 'number' OR input::text::numeric NOT BETWEEN 0 AND {jobs.checks.DELAY_SECONDS_MAX} THEN
        PERFORM ingot.refuse_input(format('delay_seconds must be between 0 and {jobs.checks.DELAY_SECONDS_MAX}, got %s',
            left(input::text, 64)));
    END IF;
    RETURN round(input::text::numeric * 1000000);
END
$$;

CREATE OR REPLACE FUNCTION ingot.check_after(input json) RETURNS uuid[]
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    ids text[] := ingot.check_texts(input, 'after', {jobs.checks.PARENTS_MAX}, {jobs.checks.KEY_CHARS_MAX});
    invalid_id text := (SELECT n FROM unnest(ids) AS n
        WHERE n !~ '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$' LIMIT 1);
BEGIN
    IF invalid_id IS NOT NULL THEN
        PERFORM ingot.refuse_parent(left(invalid_id, 64));
    END IF;
    RETURN ARRAY(SELECT DISTINCT n::uuid FROM unnest(ids) AS n ORDER BY 1);
END
$$;

CREATE OR REPLACE FUNCTION ingot.refuse_parent(parent text) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM ingot.refuse_app('IN043', 'parent_not_found', format('there is no job %s in this tenant', parent),
        'Enqueue the parents first, before or in this transaction. Nothing was changed.');
END
$$;

CREATE OR REPLACE FUNCTION ingot.check_boolean(input json, field text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    IF json_typeof(input) <> 'boolean' THEN
        PERFORM ingot.refuse_input(format('%s must be true or false, got %s', field, json_typeof(input)));
    END IF;
    RETURN input::text::boolean;
END
$$;

-- Blob IDs by file name; NULL if there are none.
CREATE OR REPLACE FUNCTION ingot.check_inputs(input json) RETURNS json
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    name text;
    blob jsonb;
    input_count integer;
BEGIN
    IF json_typeof(input) <> 'object' THEN
        PERFORM ingot.refuse_input(format('inputs must be an object that maps file names to blob IDs, got %s',
            json_typeof(input)), 'Use a value such as {"report.pdf": "<blob ID>"}. Nothing was changed.');
    END IF;
    input_count := (SELECT count(*) FROM jsonb_object_keys(input::jsonb));
    IF input_count > {jobs.files.INPUTS_MAX} THEN
        PERFORM ingot.refuse_input(format('a job must have at most {jobs.files.INPUTS_MAX} inputs, got %s', input_count));
    END IF;
    FOR name, blob IN SELECT e.key, e.value FROM jsonb_each(input::jsonb) AS e LOOP
        IF length(name) NOT BETWEEN 1 AND {blobs.checks.NAME_CHARS_MAX} OR name IN ('.', '..')
            OR name ~ '[\u0001-\u001F\u007F-\u009F/\\]' THEN
            PERFORM ingot.refuse_input(format('%s is not a valid file name', left(to_json(name)::text, 64)),
                'Use a name such as report.pdf.');
        ELSIF jsonb_typeof(blob) <> 'string' OR blob #>> '{}' !~ '^[0-9a-f]{64}$' THEN
            PERFORM ingot.refuse_input('the blob ID must be 64 lower-case hexadecimal digits');
        END IF;
    END LOOP;
    RETURN CASE WHEN input_count > 0 THEN input::jsonb::json END;
END
$$;

-- Read the JSON of one job, which has the fields of a job in the API. A null counts as missing, except in payload and
-- metadata, which are stored as they are.
CREATE OR REPLACE FUNCTION ingot.read_order(
    input json, OUT type text, OUT payload json, OUT metadata json, OUT priority smallint, OUT run_at bigint, OUT delay bigint,
    OUT max_attempts integer, OUT idempotency_key text, OUT dedupe_key text, OUT tags text[], OUT after uuid[],
    OUT runs_anyway boolean, OUT inputs json, OUT batch text, OUT force boolean, OUT correlation_id text, OUT trace_id text
)
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    name text;
    value json;
BEGIN
    payload := 'null';
    tags := '{}';
    after := '{}';
    runs_anyway := false;
    force := false;
    IF json_typeof(input) <> 'object' THEN
        PERFORM ingot.refuse_input(format('a job must be an object with a type, got %s', json_typeof(input)));
    END IF;
    FOR name, value IN SELECT e.key, e.value FROM json_each(input) AS e LOOP
        IF name = 'payload' THEN
            payload := value;
        ELSIF name = 'metadata' THEN
            metadata := value;
        ELSIF json_typeof(value) = 'null' THEN
            CONTINUE WHEN name IN ('type', 'priority', 'run_at', 'delay_seconds', 'max_attempts', 'idempotency_key', 'dedupe_key',
                'tags', 'after', 'on_dead', 'inputs', 'batch', 'force', 'correlation_id', 'trace_id');
            PERFORM ingot.refuse_input(format('a job has no field %s', left(name, 64)));
        ELSE
            CASE name
                WHEN 'type' THEN type := value #>> '{}';
                WHEN 'priority' THEN priority := ingot.check_number(
                    value, 'priority', {jobs.model.PRIORITY_MIN}, {jobs.model.PRIORITY_MAX},
                    'Use 1 (critical) to 5 (background); the default is 3. Nothing was changed.');
                WHEN 'run_at' THEN run_at := ingot.check_timestamp(value);
                WHEN 'delay_seconds' THEN delay := ingot.check_delay(value);
                WHEN 'max_attempts' THEN max_attempts := ingot.check_number(value, 'max_attempts', 1, {jobs.checks.ATTEMPTS_MAX});
                WHEN 'idempotency_key' THEN idempotency_key := ingot.check_text(value, 'idempotency_key');
                WHEN 'dedupe_key' THEN dedupe_key := ingot.check_text(value, 'dedupe_key');
                WHEN 'tags' THEN tags := ARRAY(
                    SELECT DISTINCT t FROM unnest(
                        ingot.check_texts(value, 'tags', 1000, {jobs.checks.TAG_CHARS_MAX})
                    ) AS t ORDER BY t);
                WHEN 'after' THEN after := ingot.check_after(value);
                WHEN 'on_dead' THEN
                    IF value::text NOT IN ('"run"', '"cancel"') THEN
                        PERFORM ingot.refuse_input(format('on_dead must be one of run, cancel, got %s', left(value::text, 64)));
                    END IF;
                    runs_anyway := value::text = '"run"';
                WHEN 'inputs' THEN inputs := ingot.check_inputs(value);
                WHEN 'batch' THEN batch := ingot.check_text(value, 'batch', {jobs.checks.BATCH_CHARS_MAX});
                WHEN 'force' THEN force := ingot.check_boolean(value, 'force');
                WHEN 'correlation_id' THEN correlation_id := ingot.check_text(value, 'correlation_id');
                WHEN 'trace_id' THEN trace_id := ingot.check_text(value, 'trace_id');
                ELSE PERFORM ingot.refuse_input(format('a job has no field %s', left(name, 64)));
            END CASE;
        END IF;
    END LOOP;
    IF type IS NULL THEN
        PERFORM ingot.refuse_input('a job must have a type');
    ELSIF length(type) > {jobs.checks.TYPE_CHARS_MAX} OR type !~ '^[A-Za-z0-9][A-Za-z0-9._:/-]*$' THEN
        PERFORM ingot.refuse_input(format('the job type ''%s'' is not valid', left(type, 200)),
            'Use 1 to {jobs.checks.TYPE_CHARS_MAX} letters, digits and . _ : / -, and begin with a letter or digit.');
    ELSIF run_at IS NOT NULL AND delay IS NOT NULL THEN
        PERFORM ingot.refuse_input('run_at and delay_seconds are both set', 'Set only one of them. Nothing was changed.');
    ELSIF cardinality(tags) > {jobs.checks.TAGS_MAX} THEN
        PERFORM ingot.refuse_input(format('a job must have at most {jobs.checks.TAGS_MAX} tags, got %s', cardinality(tags)));
    END IF;
    PERFORM ingot.check_json(payload, 'payload', {jobs.checks.PAYLOAD_BYTES_MAX}),
        ingot.check_json(metadata, 'metadata', {jobs.checks.METADATA_BYTES_MAX});
EXCEPTION WHEN untranslatable_character OR invalid_text_representation THEN
    PERFORM ingot.refuse_input('a job contains characters that cannot be stored: ' || SQLERRM);
END
$$;
