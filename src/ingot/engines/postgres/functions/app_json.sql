-- JSON text exactly as Python writes it, so that both compute the same digests and keys.

-- A JSON number: integers by their digits, others as the shortest text with the same double value. PostgreSQL never prints a
-- text that lies exactly between two doubles, although it is read as the even one, so one digit less is tried.
CREATE OR REPLACE FUNCTION ingot.canonical_number(json_number text) RETURNS text
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    double_value double precision;
    value numeric;
    shorter numeric;
    plain_text text;     -- without an exponent
    digits text;    -- without zeros around them
    exponent integer;
    sign text := CASE WHEN json_number LIKE '-%' THEN '-' ELSE '' END;
BEGIN
    IF json_number !~ '[.eE]' THEN
        IF length(json_number) > 4300 THEN
            RAISE EXCEPTION 'a number has more digits than Python reads' USING ERRCODE = 'data_exception';
        END IF;
        RETURN CASE WHEN json_number = '-0' THEN '0' ELSE json_number END;
    END IF;
    double_value := abs(json_number::double precision);
    value := double_value::text::numeric;
    IF value = 0 THEN
        RETURN sign || '0.0';
    END IF;
    LOOP
        plain_text := trim_scale(value)::text;
        digits := trim(BOTH '0' FROM replace(plain_text, '.', ''));
        exponent := CASE
            WHEN plain_text LIKE '0.%' THEN length(ltrim(substr(plain_text, 3), '0')) - length(substr(plain_text, 3)) - 1
            ELSE length(split_part(plain_text, '.', 1)) - 1
        END;
        EXIT WHEN length(digits) < 16;
        shorter := round(value, length(digits) - 2 - exponent);
        EXIT WHEN shorter > 1.7976931348623157e308 OR shorter::double precision <> double_value;
        value := shorter;
    END LOOP;
    RETURN sign || CASE
        WHEN exponent BETWEEN -5 AND 15 THEN plain_text || CASE WHEN plain_text LIKE '%.%' THEN '' ELSE '.0' END
        ELSE left(digits, 1) || CASE WHEN length(digits) > 1 THEN '.' || substr(digits, 2) ELSE '' END || 'e' || exponent
    END;
END
$$;

-- JSON in its shortest form with sorted names, the same for all texts with one meaning; of members with the same name the last
-- counts. Fails for invalid Unicode, numbers out of the range of a double, and too deep nesting.
CREATE OR REPLACE FUNCTION ingot.canonical_json(part json, depth integer DEFAULT 0) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT
AS $$
DECLARE
    kind text := json_typeof(part);
BEGIN
    IF kind = 'string' THEN
        RETURN to_json(part #>> '{}');
    ELSIF kind = 'number' THEN
        RETURN ingot.canonical_number(btrim(part::text, E' \t\n\r'));
    ELSIF kind IN ('boolean', 'null') THEN
        RETURN btrim(part::text, E' \t\n\r');
    ELSIF depth >= 200 THEN
        RAISE EXCEPTION 'it must not be nested deeper than 200 levels' USING ERRCODE = 'data_exception';
    ELSIF kind = 'array' THEN
        RETURN '[' || coalesce((
            SELECT string_agg(ingot.canonical_json(e.value, depth + 1), ',' ORDER BY e.number)
            FROM json_array_elements(part) WITH ORDINALITY AS e (value, number)
        ), '') || ']';
    END IF;
    RETURN '{' || coalesce((
        SELECT string_agg(to_json(e.name) || ':' || ingot.canonical_json(e.value, depth + 1), ',' ORDER BY e.name COLLATE "C")
        FROM (
            SELECT DISTINCT ON (e.name COLLATE "C") e.name, e.value
            FROM json_each(part) WITH ORDINALITY AS e (name, value, number) ORDER BY e.name COLLATE "C", e.number DESC
        ) AS e
    ), '') || '}';
END
$$;

CREATE OR REPLACE FUNCTION ingot.json_digest(part json) RETURNS bytea
LANGUAGE sql IMMUTABLE
AS $$ SELECT sha256(convert_to(ingot.canonical_json(part), 'UTF8')) $$;

-- The value of a payload at a path, as used in limit keys: strings as they are, other values as JSON; NULL if missing.
CREATE OR REPLACE FUNCTION ingot.value_at_path(payload json, path text) RETURNS text
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
    RETURN CASE json_typeof(value) WHEN 'string' THEN value #>> '{}' WHEN 'null' THEN NULL ELSE ingot.canonical_json(value) END;
END
$$;

-- The limit key of a job: the template with values of the payload filled in; NULL if the payload has none of them.
CREATE OR REPLACE FUNCTION ingot.limit_key_of(template text, payload json) RETURNS text
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    placeholder CONSTANT text := '[{]([A-Za-z0-9_-]+(?:[.][A-Za-z0-9_-]+)*)[}]';
    literals text[] := regexp_split_to_array(template, placeholder);
    key text := literals[1];
    part text;
    any_found boolean := false;
    next_literal integer := 1;
    path text;
BEGIN
    FOR path IN SELECT m[1] FROM regexp_matches(template, placeholder, 'g') AS m LOOP
        part := ingot.value_at_path(payload, path);
        next_literal := next_literal + 1;
        any_found := any_found OR part IS NOT NULL;
        key := key || coalesce(part, '') || literals[next_literal];
    END LOOP;
    IF NOT any_found THEN
        RETURN NULL;
    END IF;
    RETURN nullif(CASE WHEN length(key) <= 128 THEN key ELSE encode(sha256(convert_to(key, 'UTF8')), 'hex') END, '');
END
$$;
