-- Records: small objects of a tenant, or shared by all (the all-zero tenant). Definitions and pauses become kinds of
-- records. The values of definitions that enqueue, claim and settle read are columns of their own.
CREATE TABLE ingot.records (
    kind        text COLLATE "C" NOT NULL,
    tenant      uuid NOT NULL,
    name        text COLLATE "C" NOT NULL,
    version     bigint NOT NULL CHECK (version > 0),
    body        text NOT NULL,
    sealed      bytea,          -- encrypted; only a function returns it
    created_at  bigint NOT NULL,
    created_by  text,
    updated_at  bigint NOT NULL,
    updated_by  text,
    priority        smallint GENERATED ALWAYS AS (CASE WHEN kind = 'definition' THEN (body::jsonb ->> 'priority')::smallint END) STORED,
    max_attempts    integer GENERATED ALWAYS AS (CASE WHEN kind = 'definition' THEN (body::jsonb ->> 'max_attempts')::integer END) STORED,
    crash_cap       integer GENERATED ALWAYS AS (CASE WHEN kind = 'definition' THEN (body::jsonb ->> 'crash_cap')::integer END) STORED,
    timeout_seconds double precision
        GENERATED ALWAYS AS (CASE WHEN kind = 'definition' THEN (body::jsonb ->> 'timeout_seconds')::double precision END) STORED,
    first_seconds   double precision
        GENERATED ALWAYS AS (CASE WHEN kind = 'definition' THEN (body::jsonb -> 'backoff' ->> 'first_seconds')::double precision END) STORED,
    factor          double precision
        GENERATED ALWAYS AS (CASE WHEN kind = 'definition' THEN (body::jsonb -> 'backoff' ->> 'factor')::double precision END) STORED,
    max_seconds     double precision
        GENERATED ALWAYS AS (CASE WHEN kind = 'definition' THEN (body::jsonb -> 'backoff' ->> 'max_seconds')::double precision END) STORED,
    max_running     integer GENERATED ALWAYS AS (CASE WHEN kind = 'definition' THEN (body::jsonb ->> 'max_running')::integer END) STORED,
    max_running_per_key integer
        GENERATED ALWAYS AS (CASE WHEN kind = 'definition' THEN (body::jsonb ->> 'max_running_per_key')::integer END) STORED,
    -- The rule that an order must be made with: the template of its limit key, and whether it may reuse another job.
    rule            text GENERATED ALWAYS AS (CASE
        WHEN kind = 'definition' AND (body::jsonb ->> 'limit_key' IS NOT NULL OR (body::jsonb ->> 'reuse')::boolean) THEN
            coalesce(body::jsonb ->> 'limit_key', '') || E'\n'
            || CASE WHEN (body::jsonb ->> 'reuse')::boolean THEN body::jsonb ->> 'version' ELSE '' END
    END) STORED,
    PRIMARY KEY (kind, tenant, name)
);
CREATE INDEX records_of_tenant ON ingot.records (tenant);
CREATE INDEX records_definitions ON ingot.records (name, tenant) WHERE kind = 'definition';
CREATE INDEX records_bounded ON ingot.records (name)
    WHERE kind = 'definition' AND (max_running IS NOT NULL OR max_running_per_key IS NOT NULL);

-- The number of changes of records. Every transaction that changes a record locks this row.
CREATE TABLE ingot.record_changes (
    only_row    boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    changes     bigint NOT NULL
);
INSERT INTO ingot.record_changes (changes) VALUES (0);

INSERT INTO ingot.records (kind, tenant, name, version, body, created_at, updated_at)
SELECT 'definition', tenant, type, 1, definition, now.at, now.at
FROM ingot.definitions, (SELECT (extract(epoch FROM now()) * 1000000)::bigint AS at) AS now;
INSERT INTO ingot.records (kind, tenant, name, version, body, created_at, created_by, updated_at, updated_by)
SELECT 'pause', tenant, type, 1, json_build_object('by', by)::text, since, by, since, by FROM ingot.pauses;
DROP TABLE ingot.definitions CASCADE;
DROP TABLE ingot.pauses CASCADE;

DO $$
DECLARE
    isolated name;
BEGIN
    FOREACH isolated IN ARRAY ARRAY['records', 'record_changes'] LOOP
        EXECUTE format('ALTER TABLE ingot.%I ENABLE ROW LEVEL SECURITY', isolated);
        EXECUTE format('ALTER TABLE ingot.%I FORCE ROW LEVEL SECURITY', isolated);
        EXECUTE format('CREATE POLICY owner ON ingot.%I TO ingot_owner USING (true) WITH CHECK (true)', isolated);
    END LOOP;
END
$$;
GRANT SELECT (kind, tenant, name, version, body, created_at, created_by, updated_at, updated_by) ON ingot.records
    TO ingot_server;
CREATE POLICY tenant ON ingot.records FOR SELECT TO ingot_server
    USING (tenant = nullif(current_setting('ingot.tenant', true), '')::uuid);
