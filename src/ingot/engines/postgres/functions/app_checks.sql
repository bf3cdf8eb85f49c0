-- What an application says of a job, looked at as everywhere else: what is refused has a code, a hint, and changes nothing.

-- Refuse a call of an application. The detail is JSON with the code of the error, and what else a program can use.
CREATE OR REPLACE FUNCTION ingot.refuse_app(state text, code text, message text, hint text, more jsonb DEFAULT '{}')
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION '%', message
        USING ERRCODE = state, DETAIL = (jsonb_build_object('code', code) || more)::text, HINT = hint;
END
$$;

CREATE OR REPLACE FUNCTION ingot.refuse_input(message text, hint text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM ingot.refuse_app('IN040', 'invalid_input', message,
        coalesce(hint, 'Correct the value and send it again; nothing was changed.'));
END
$$;

-- JSON that every reader can read, and no more of it than fits: strings are Unicode without the character 0, numbers
-- doubles, and nothing is nested too deep. What must be looked at part by part is found by a look at the text.
CREATE OR REPLACE FUNCTION ingot.check_json(said json, what text, bytes_max integer) RETURNS void
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    written text := said::text;
BEGIN
    IF octet_length(convert_to(written, 'UTF8')) > bytes_max THEN
        IF what = 'data' THEN
            PERFORM ingot.refuse_app('IN045', 'event_too_large', format('the data has %s bytes; the most is %s',
                octet_length(convert_to(written, 'UTF8')), bytes_max),
                'Store the bytes elsewhere and put their address in the event; nothing was changed.');
        END IF;
        PERFORM ingot.refuse_app('IN041', 'payload_too_large', format('the %s has %s bytes; the most is %s', what,
            octet_length(convert_to(written, 'UTF8')), bytes_max),
            'Store the bytes elsewhere and put their address in the payload; nothing was changed.');
    END IF;
    PERFORM said::jsonb;
    IF written ~ '[eE][+]?[0-9]{3}|[0-9]{255}' OR length(translate(written, '[{', '')) + 200 < length(written) THEN
        PERFORM ingot.plain_json(said);
    END IF;
EXCEPTION WHEN data_exception OR untranslatable_character OR numeric_value_out_of_range OR invalid_text_representation THEN
    PERFORM ingot.refuse_input(format('the %s is not JSON that can be kept: %s', what, SQLERRM));
END
$$;

-- A text of 1 to so many characters.
CREATE OR REPLACE FUNCTION ingot.check_text(said json, what text, chars_max integer DEFAULT {jobs.checks.KEY_CHARS_MAX}) RETURNS text
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    value text;
BEGIN
    IF json_typeof(said) <> 'string' THEN
        PERFORM ingot.refuse_input(format('the %s is a %s; it is a text', what, json_typeof(said)));
    END IF;
    value := said #>> '{}';
    IF length(value) NOT BETWEEN 1 AND chars_max THEN
        PERFORM ingot.refuse_input(format('the %s has %s characters; it goes from 1 to %s', what, length(value), chars_max));
    END IF;
    RETURN value;
END
$$;

CREATE OR REPLACE FUNCTION ingot.check_texts(said json, what text, most integer, chars_max integer) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    IF json_typeof(said) <> 'array' THEN
        PERFORM ingot.refuse_input(format('%s is a %s; it is a list', what, json_typeof(said)));
    ELSIF json_array_length(said) > most THEN
        PERFORM ingot.refuse_input(format('there are %s in %s; the most is %s', json_array_length(said), what, most));
    END IF;
    RETURN ARRAY(SELECT ingot.check_text(e, what, chars_max) FROM json_array_elements(said) WITH ORDINALITY AS e (e, n) ORDER BY n);
END
$$;

CREATE OR REPLACE FUNCTION ingot.check_number(said json, what text, lowest integer, highest integer, hint text DEFAULT NULL)
RETURNS integer
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    IF json_typeof(said) <> 'number' OR said::text !~ '^[[:space:]]*-?[0-9]+[[:space:]]*$' THEN
        PERFORM ingot.refuse_input(format('%s is %s; it is a whole number', what, left(said::text, 64)), hint);
    ELSIF said::text::numeric NOT BETWEEN lowest AND highest THEN
        PERFORM ingot.refuse_input(format('%s is %s; it goes from %s to %s', what, left(said::text, 64), lowest, highest), hint);
    END IF;
    RETURN said::text::integer;
END
$$;

-- A moment in microseconds. What lies before 1970 is past, and becomes its first moment.
CREATE OR REPLACE FUNCTION ingot.check_moment(said json) RETURNS bigint
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    written text := CASE WHEN json_typeof(said) = 'string' THEN ingot.check_text(said, 'run_at') END;
    micros numeric;
BEGIN
    IF written !~* '^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]([.][0-9]+)?(Z|[+-][0-9]{2}:?[0-9]{2})$' THEN
        written := NULL;
    END IF;
    micros := extract(epoch FROM written::timestamptz) * 1000000;
    IF micros IS NULL OR micros > {jobs.checks.TIMESTAMP_MAX} THEN
        PERFORM ingot.refuse_input(format('run_at is %s; it is a time with an offset, up to the year 9998', left(said::text, 64)));
    END IF;
    RETURN greatest(micros, 0);
EXCEPTION WHEN datetime_field_overflow OR invalid_datetime_format OR invalid_time_zone_displacement_value THEN
    PERFORM ingot.refuse_input(format('run_at is %s; there is no such time', left(said::text, 64)));
END
$$;

CREATE OR REPLACE FUNCTION ingot.check_delay(said json) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    IF json_typeof(said) <> 'number' OR said::text::numeric NOT BETWEEN 0 AND {jobs.checks.DELAY_SECONDS_MAX} THEN
        PERFORM ingot.refuse_input(format('delay_seconds is %s; it is a number from 0 to {jobs.checks.DELAY_SECONDS_MAX}', left(said::text, 64)));
    END IF;
    RETURN round(said::text::numeric * 1000000);
END
$$;

CREATE OR REPLACE FUNCTION ingot.check_after(said json) RETURNS uuid[]
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    named text[] := ingot.check_texts(said, 'after', {jobs.checks.PARENTS_MAX}, {jobs.checks.KEY_CHARS_MAX});
    wrong text := (SELECT n FROM unnest(named) AS n
        WHERE n !~ '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$' LIMIT 1);
BEGIN
    IF wrong IS NOT NULL THEN
        PERFORM ingot.refuse_parent(left(wrong, 64));
    END IF;
    RETURN ARRAY(SELECT DISTINCT n::uuid FROM unnest(named) AS n ORDER BY 1);
END
$$;

CREATE OR REPLACE FUNCTION ingot.refuse_parent(parent text) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM ingot.refuse_app('IN043', 'parent_not_found', format('there is no job %s in this tenant', parent),
        'Enqueue the jobs it waits for before it, or in the same call; nothing was changed.');
END
$$;

CREATE OR REPLACE FUNCTION ingot.check_flag(said json, what text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    IF json_typeof(said) <> 'boolean' THEN
        PERFORM ingot.refuse_input(format('%s is a %s; it is true or false', what, json_typeof(said)));
    END IF;
    RETURN said::text::boolean;
END
$$;

-- The ids of blobs, by the names of files.
CREATE OR REPLACE FUNCTION ingot.check_inputs(said json) RETURNS json
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    name text;
    blob jsonb;
    many integer;
BEGIN
    IF json_typeof(said) <> 'object' THEN
        PERFORM ingot.refuse_input(format('inputs is a %s; it says which blobs by name', json_typeof(said)),
            'Write it as in {"report.pdf": "<the id of a blob>"}; nothing was changed.');
    END IF;
    many := (SELECT count(*) FROM jsonb_object_keys(said::jsonb));
    IF many > {jobs.files.INPUTS_MAX} THEN
        PERFORM ingot.refuse_input(format('there are %s inputs; the most is {jobs.files.INPUTS_MAX}', many));
    END IF;
    FOR name, blob IN SELECT e.key, e.value FROM jsonb_each(said::jsonb) AS e LOOP
        IF length(name) NOT BETWEEN 1 AND {blobs.checks.NAME_CHARS_MAX} OR name IN ('.', '..') OR name ~ '[\u0001-\u001F\u007F-\u009F/\\]' THEN
            PERFORM ingot.refuse_input(format('%s cannot be the name of a file', left(to_json(name)::text, 64)),
                'Write it as in report.pdf.');
        ELSIF jsonb_typeof(blob) <> 'string' OR blob #>> '{}' !~ '^[0-9a-f]{64}$' THEN
            PERFORM ingot.refuse_input('the id of a blob is not 64 lower-case hexadecimal digits');
        END IF;
    END LOOP;
    RETURN CASE WHEN many > 0 THEN said::jsonb::json END;
END
$$;

-- One job as an application asks for it: the fields of a job in the API. What is null was not said, but for payload and
-- metadata, which are kept as they stand.
CREATE OR REPLACE FUNCTION ingot.read_order(
    said json, OUT type text, OUT payload json, OUT metadata json, OUT priority smallint, OUT run_at bigint, OUT delay bigint,
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
    IF json_typeof(said) <> 'object' THEN
        PERFORM ingot.refuse_input(format('a job is a %s; it is an object with a type', json_typeof(said)));
    END IF;
    FOR name, value IN SELECT e.key, e.value FROM json_each(said) AS e LOOP
        IF name = 'payload' THEN
            payload := value;
        ELSIF name = 'metadata' THEN
            metadata := value;
        ELSIF json_typeof(value) = 'null' THEN
            CONTINUE WHEN name IN ('type', 'priority', 'run_at', 'delay_seconds', 'max_attempts', 'idempotency_key', 'dedupe_key',
                'tags', 'after', 'on_dead', 'inputs', 'batch', 'force', 'correlation_id', 'trace_id');
            PERFORM ingot.refuse_input(format('a job has no %s', left(name, 64)));
        ELSE
            CASE name
                WHEN 'type' THEN type := value #>> '{}';
                WHEN 'priority' THEN priority := ingot.check_number(value, 'priority', {jobs.model.PRIORITY_MIN}, {jobs.model.PRIORITY_MAX},
                    '1 is critical, 3 the default, 5 background; nothing was changed.');
                WHEN 'run_at' THEN run_at := ingot.check_moment(value);
                WHEN 'delay_seconds' THEN delay := ingot.check_delay(value);
                WHEN 'max_attempts' THEN max_attempts := ingot.check_number(value, 'max_attempts', 1, {jobs.checks.ATTEMPTS_MAX});
                WHEN 'idempotency_key' THEN idempotency_key := ingot.check_text(value, 'idempotency key');
                WHEN 'dedupe_key' THEN dedupe_key := ingot.check_text(value, 'dedupe key');
                WHEN 'tags' THEN tags := ARRAY(
                    SELECT DISTINCT t FROM unnest(ingot.check_texts(value, 'tags', 1000, {jobs.checks.TAG_CHARS_MAX})) AS t ORDER BY t);
                WHEN 'after' THEN after := ingot.check_after(value);
                WHEN 'on_dead' THEN
                    IF value::text NOT IN ('"run"', '"cancel"') THEN
                        PERFORM ingot.refuse_input(format('on_dead is %s; it is one of run, cancel', left(value::text, 64)));
                    END IF;
                    runs_anyway := value::text = '"run"';
                WHEN 'inputs' THEN inputs := ingot.check_inputs(value);
                WHEN 'batch' THEN batch := ingot.check_text(value, 'batch', {jobs.checks.BATCH_CHARS_MAX});
                WHEN 'force' THEN force := ingot.check_flag(value, 'force');
                WHEN 'correlation_id' THEN correlation_id := ingot.check_text(value, 'correlation id');
                WHEN 'trace_id' THEN trace_id := ingot.check_text(value, 'trace id');
                ELSE PERFORM ingot.refuse_input(format('a job has no %s', left(name, 64)));
            END CASE;
        END IF;
    END LOOP;
    IF type IS NULL THEN
        PERFORM ingot.refuse_input('a job has no type');
    ELSIF length(type) > {jobs.checks.TYPE_CHARS_MAX} OR type !~ '^[A-Za-z0-9][A-Za-z0-9._:/-]*$' THEN
        PERFORM ingot.refuse_input(format('the job type ''%s'' is not usable', left(type, 200)),
            'Use up to {jobs.checks.TYPE_CHARS_MAX} letters, digits and . _ : / -, beginning with a letter or digit.');
    ELSIF run_at IS NOT NULL AND delay IS NOT NULL THEN
        PERFORM ingot.refuse_input('run_at and delay_seconds were both given', 'Give one of them; nothing was changed.');
    ELSIF cardinality(tags) > {jobs.checks.TAGS_MAX} THEN
        PERFORM ingot.refuse_input(format('there are %s tags; the most is {jobs.checks.TAGS_MAX}', cardinality(tags)));
    END IF;
    PERFORM ingot.check_json(payload, 'payload', {jobs.checks.PAYLOAD_BYTES_MAX}), ingot.check_json(metadata, 'metadata', {jobs.checks.METADATA_BYTES_MAX});
EXCEPTION WHEN untranslatable_character OR invalid_text_representation THEN
    PERFORM ingot.refuse_input('a job has characters that cannot be stored: ' || SQLERRM);
END
$$;
