-- JSON as Python writes it, so that digests and keys made here are the same as those made there.

-- A number of JSON: whole ones by their digits, others as the shortest text that means the same double. PostgreSQL leaves
-- out texts that lie just between two doubles, although they are read as the even one: a digit less is tried.
CREATE OR REPLACE FUNCTION ingot.plain_number(written text) RETURNS text
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    meant double precision;
    value numeric;
    fewer numeric;
    whole text;     -- without an exponent
    digits text;    -- without zeros around them
    exponent integer;
    sign text := CASE WHEN written LIKE '-%' THEN '-' ELSE '' END;
BEGIN
    IF written !~ '[.eE]' THEN
        IF length(written) > 4300 THEN
            RAISE EXCEPTION 'a number has more digits than Python reads' USING ERRCODE = 'data_exception';
        END IF;
        RETURN CASE WHEN written = '-0' THEN '0' ELSE written END;
    END IF;
    meant := abs(written::double precision);
    value := meant::text::numeric;
    IF value = 0 THEN
        RETURN sign || '0.0';
    END IF;
    LOOP
        whole := trim_scale(value)::text;
        digits := trim(BOTH '0' FROM replace(whole, '.', ''));
        exponent := CASE
            WHEN whole LIKE '0.%' THEN length(ltrim(substr(whole, 3), '0')) - length(substr(whole, 3)) - 1
            ELSE length(split_part(whole, '.', 1)) - 1
        END;
        EXIT WHEN length(digits) < 16;
        fewer := round(value, length(digits) - 2 - exponent);
        EXIT WHEN fewer > 1.7976931348623157e308 OR fewer::double precision <> meant;
        value := fewer;
    END LOOP;
    RETURN sign || CASE
        WHEN exponent BETWEEN -5 AND 15 THEN whole || CASE WHEN whole LIKE '%.%' THEN '' ELSE '.0' END
        ELSE left(digits, 1) || CASE WHEN length(digits) > 1 THEN '.' || substr(digits, 2) ELSE '' END || 'e' || exponent
    END;
END
$$;

-- JSON in its shortest form with sorted names, equal for what means the same; of what stands there twice under one name the
-- last counts. Fails for text that is no Unicode, numbers beyond a double, and what is nested too deep.
CREATE OR REPLACE FUNCTION ingot.plain_json(part json, depth integer DEFAULT 0) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT
AS $$
DECLARE
    kind text := json_typeof(part);
BEGIN
    IF kind = 'string' THEN
        RETURN to_json(part #>> '{}');
    ELSIF kind = 'number' THEN
        RETURN ingot.plain_number(btrim(part::text, E' \t\n\r'));
    ELSIF kind IN ('boolean', 'null') THEN
        RETURN btrim(part::text, E' \t\n\r');
    ELSIF depth >= 200 THEN
        RAISE EXCEPTION 'it is nested deeper than 200 levels' USING ERRCODE = 'data_exception';
    ELSIF kind = 'array' THEN
        RETURN '[' || coalesce((
            SELECT string_agg(ingot.plain_json(e.value, depth + 1), ',' ORDER BY e.place)
            FROM json_array_elements(part) WITH ORDINALITY AS e (value, place)
        ), '') || ']';
    END IF;
    RETURN '{' || coalesce((
        SELECT string_agg(to_json(e.name) || ':' || ingot.plain_json(e.value, depth + 1), ',' ORDER BY e.name COLLATE "C")
        FROM (
            SELECT DISTINCT ON (e.name COLLATE "C") e.name, e.value
            FROM json_each(part) WITH ORDINALITY AS e (name, value, place) ORDER BY e.name COLLATE "C", e.place DESC
        ) AS e
    ), '') || '}';
END
$$;

CREATE OR REPLACE FUNCTION ingot.json_digest(part json) RETURNS bytea
LANGUAGE sql IMMUTABLE
AS $$ SELECT sha256(convert_to(ingot.plain_json(part), 'UTF8')) $$;

-- What a payload has at a path, as it stands in a limit key: texts as they are, other values as JSON; or nothing.
CREATE OR REPLACE FUNCTION ingot.part_of(payload json, path text) RETURNS text
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    value json := payload;
    name text;
BEGIN
    FOREACH name IN ARRAY string_to_array(path, '.') LOOP
        value := CASE json_typeof(value)
            WHEN 'object' THEN value -> name
            WHEN 'array' THEN CASE WHEN name ~ '^[0-9]{1,9}$' THEN value -> name::integer END
        END;
    END LOOP;
    RETURN CASE json_typeof(value) WHEN 'string' THEN value #>> '{}' WHEN 'null' THEN NULL ELSE ingot.plain_json(value) END;
END
$$;

-- The limit key of a job: the template with the parts of the payload it names, or nothing when there are none.
CREATE OR REPLACE FUNCTION ingot.limit_key_of(template text, payload json) RETURNS text
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    named CONSTANT text := '[{]([A-Za-z0-9_-]+(?:[.][A-Za-z0-9_-]+)*)[}]';
    between text[] := regexp_split_to_array(template, named);
    key text := between[1];
    part text;
    found boolean := false;
    place integer := 1;
    path text;
BEGIN
    FOR path IN SELECT m[1] FROM regexp_matches(template, named, 'g') AS m LOOP
        part := ingot.part_of(payload, path);
        place := place + 1;
        found := found OR part IS NOT NULL;
        key := key || coalesce(part, '') || between[place];
    END LOOP;
    IF NOT found THEN
        RETURN NULL;
    END IF;
    RETURN nullif(CASE WHEN length(key) <= 128 THEN key ELSE encode(sha256(convert_to(key, 'UTF8')), 'hex') END, '');
END
$$;
