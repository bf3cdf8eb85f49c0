-- The heart: tenants, events, definitions and jobs.
--
-- A job is an immutable body (`jobs`) and one small row that says where it stands: in `ready`, in `later` until its
-- time comes, in `leases` while it runs. Rows of `ready` and `later` are inserted and deleted, never updated, so what
-- a statement locks is what its snapshot saw. A job with no such row is finished: its newest outcome, or its row in
-- `canceled`, says how. A lease is an attempt that runs; when it ends, it becomes a row of `outcomes`, which is only
-- appended to, so a history of any size costs the claim nothing. Only functions write, and they check what they are
-- given, so that rows that move need no checks of their own.
-- Instants are microseconds since 1970 UTC.

CREATE SEQUENCE ingot.fences MINVALUE 4294967297 MAXVALUE 9007199254740991;

CREATE TABLE ingot.tenants (
    id          uuid PRIMARY KEY,
    slug        text NOT NULL UNIQUE,
    weight      integer NOT NULL CHECK (weight > 0),
    time_zone   text NOT NULL,
    limits      text NOT NULL
);

-- The roles of workers that talk to PostgreSQL themselves, each for one tenant.
CREATE TABLE ingot.worker_roles (
    role        name PRIMARY KEY,
    tenant      uuid NOT NULL REFERENCES ingot.tenants
);

-- The server these rows live on, and what is added to the number of a transaction there to get its position in the
-- event log. One row: a dump restored on another server goes on above the positions it brought along.
CREATE TABLE ingot.home (
    server      bigint PRIMARY KEY,
    shift       bigint NOT NULL
);

-- One row holds the events of one tenant in one transaction, in order, as a JSON array.
CREATE TABLE ingot.events (
    tenant      uuid NOT NULL,
    position    bigint NOT NULL,
    at          bigint NOT NULL,
    entries     text NOT NULL,
    PRIMARY KEY (tenant, position)
);
-- Every claim and every settle writes entries: lz4 packs them faster, where the server was built with it.
DO $$
BEGIN
    ALTER TABLE ingot.events ALTER COLUMN entries SET COMPRESSION lz4;
EXCEPTION WHEN feature_not_supported THEN
    NULL;
END
$$;

-- The tenant of all zeros stands for all tenants.
CREATE TABLE ingot.definitions (
    tenant          uuid NOT NULL,
    type            text NOT NULL,
    definition      text NOT NULL,
    priority        smallint NOT NULL,
    max_attempts    integer NOT NULL,
    crash_cap       integer NOT NULL,
    timeout_seconds double precision NOT NULL,
    first_seconds   double precision NOT NULL,
    factor          double precision NOT NULL,
    max_seconds     double precision NOT NULL,
    PRIMARY KEY (type, tenant)
);

CREATE TABLE ingot.jobs (
    id              uuid PRIMARY KEY,
    tenant          uuid NOT NULL,
    type            text NOT NULL,
    payload         bytea NOT NULL,
    metadata        bytea,
    created_at      bigint NOT NULL,
    source          text NOT NULL CHECK (source IN ('manual', 'event', 'schedule', 'system', 'document')),
    source_ref      text,
    created_by      text,
    correlation_id  text,
    trace_id        text,
    idempotency_key text,
    dedupe_key      text,
    depth           integer NOT NULL
);
CREATE INDEX jobs_by_tenant ON ingot.jobs (tenant, id);

CREATE TABLE ingot.idempotency_keys (
    tenant      uuid NOT NULL,
    type        text NOT NULL,
    key         text NOT NULL,
    job         uuid NOT NULL,
    digest      bytea NOT NULL,
    PRIMARY KEY (tenant, type, key)
);

-- Which unfinished job holds a key.
CREATE TABLE ingot.dedupe_keys (
    tenant      uuid NOT NULL,
    key         text NOT NULL,
    job         uuid NOT NULL,
    PRIMARY KEY (tenant, key)
);

CREATE TABLE ingot.tags (
    job         uuid NOT NULL,
    tag         text NOT NULL,
    tenant      uuid NOT NULL,
    PRIMARY KEY (job, tag)
);
-- The tag first: a tenant alone must not look like a way to find the tags of one job.
CREATE INDEX tags_by_tag ON ingot.tags (tag, tenant, job);

CREATE TABLE ingot.ready (
    id              uuid PRIMARY KEY,
    tenant          uuid NOT NULL,
    type            text NOT NULL,
    limit_key       text NOT NULL,
    dedupe_key      text,
    priority        smallint NOT NULL CHECK (priority BETWEEN 1 AND 5),
    run_at          bigint NOT NULL,
    attempts        integer NOT NULL,
    failures        integer NOT NULL,
    crashes         integer NOT NULL,
    max_attempts    integer NOT NULL CHECK (max_attempts > 0),
    fence           bigint NOT NULL,
    told_at         bigint NOT NULL DEFAULT 0   -- when progress was last told in an event
);
CREATE INDEX ready_in_order ON ingot.ready (type, tenant, limit_key, priority, run_at, id);

CREATE TABLE ingot.later (LIKE ingot.ready INCLUDING CONSTRAINTS INCLUDING DEFAULTS, PRIMARY KEY (id));
CREATE INDEX later_in_order ON ingot.later (run_at, id);

CREATE TABLE ingot.leases (
    LIKE ingot.ready INCLUDING DEFAULTS,
    worker_id           text NOT NULL,
    host                text,
    pid                 bigint,
    started_at          bigint NOT NULL,
    expires_at          bigint NOT NULL,
    cancel_requested    boolean NOT NULL DEFAULT false,
    percent             double precision,
    stage               text,
    changed_by          xid8 NOT NULL,              -- the transaction that wrote this version
    PRIMARY KEY (id)
);
CREATE INDEX leases_in_order ON ingot.leases (expires_at);

-- Jobs that were canceled while they waited, as they stood.
CREATE TABLE ingot.canceled (
    LIKE ingot.ready INCLUDING CONSTRAINTS INCLUDING DEFAULTS,
    finished_at     bigint NOT NULL,
    PRIMARY KEY (id)
);

-- Attempts that have ended, and how the job stood after each.
CREATE TABLE ingot.outcomes (
    job                 uuid NOT NULL,
    fence               bigint NOT NULL,
    tenant              uuid NOT NULL,
    worker_id           text NOT NULL,
    host                text,
    pid                 bigint,
    started_at          bigint NOT NULL,
    outcome             text NOT NULL,      -- succeeded, failed, snoozed, released or lost
    retry               boolean NOT NULL,   -- whether the worker said that trying again makes sense
    status_after        text NOT NULL,
    run_at              bigint NOT NULL,
    attempts            integer NOT NULL,
    failures            integer NOT NULL,
    crashes             integer NOT NULL,
    max_attempts        integer NOT NULL,
    priority            smallint NOT NULL,
    cancel_requested    boolean NOT NULL,
    finished_at         bigint NOT NULL,
    exit_code           bigint,
    error               text,
    result              bytea,
    percent             double precision,
    stage               text,
    told_at             bigint NOT NULL,
    PRIMARY KEY (job, fence)
);

-- A tenant's jobs by type and status are `counts` plus all deltas that have not been folded into them.
CREATE TABLE ingot.counts (
    tenant      uuid NOT NULL,
    type        text NOT NULL,
    status      text NOT NULL,
    jobs        bigint NOT NULL,
    PRIMARY KEY (tenant, type, status)
);
CREATE TABLE ingot.count_deltas (
    tenant      uuid NOT NULL,
    type        text NOT NULL,
    status      text NOT NULL,
    jobs        bigint NOT NULL
);
CREATE INDEX count_deltas_by_tenant ON ingot.count_deltas (tenant);

-- Who may do what. Reads run as `ingot_server` with the tenant set for their transaction: unset, there is nothing to
-- see. Every write is a function of `ingot_owner`, a role that nobody logs in as.
DO $$
DECLARE
    isolated name;
BEGIN
    FOR isolated IN SELECT c.relname FROM pg_class AS c WHERE c.relnamespace = 'ingot'::regnamespace
        AND c.relkind = 'r' AND c.relname NOT IN ('migrations', 'home') LOOP
        EXECUTE format('ALTER TABLE ingot.%I ENABLE ROW LEVEL SECURITY', isolated);
        EXECUTE format('ALTER TABLE ingot.%I FORCE ROW LEVEL SECURITY', isolated);
        EXECUTE format('CREATE POLICY owner ON ingot.%I TO ingot_owner USING (true) WITH CHECK (true)', isolated);
    END LOOP;
    FOREACH isolated IN ARRAY ARRAY[
        'events', 'jobs', 'tags', 'ready', 'later', 'leases', 'canceled', 'outcomes', 'counts', 'count_deltas'
    ] LOOP
        EXECUTE format('GRANT SELECT ON ingot.%I TO ingot_server', isolated);
        EXECUTE format(
            'CREATE POLICY tenant ON ingot.%I FOR SELECT TO ingot_server '
            'USING (tenant = nullif(current_setting(''ingot.tenant'', true), '''')::uuid)', isolated
        );
    END LOOP;
END
$$;
GRANT SELECT ON ingot.migrations, ingot.home TO ingot_server;
GRANT USAGE ON SCHEMA ingot TO ingot_server, ingot_worker;
