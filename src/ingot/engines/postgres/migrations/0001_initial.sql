-- The initial schema: tenants, events, definitions and jobs.
--
-- A job is an immutable body (`jobs`) and one small row that holds its state: in `ready`, in `later` until it is due, or in
-- `leases` while it runs. Rows of `ready` and `later` are inserted and deleted, never updated, so a locked row is always
-- the version that the snapshot saw. A job without such a row is finished: its newest outcome, or its row in `canceled`,
-- has the final status. A lease is a running attempt; when it ends, it becomes a row of the append-only `outcomes`, so the
-- size of the history does not slow claims. Only functions write. They validate their parameters, so that the tables that
-- rows move between need no constraints of their own.
-- Times are microseconds since 1970 UTC.

CREATE SEQUENCE ingot.fences MINVALUE 4294967297 MAXVALUE 9007199254740991;

CREATE TABLE ingot.tenants (
    id          uuid PRIMARY KEY,
    slug        text NOT NULL UNIQUE,
    weight      integer NOT NULL CHECK (weight > 0),
    time_zone   text NOT NULL,
    limits      text NOT NULL,
    max_running     integer GENERATED ALWAYS AS (CASE WHEN limits::jsonb ->> 'max_running_jobs' IS NOT NULL THEN
        least((limits::jsonb ->> 'max_running_jobs')::bigint, 2147483647)::integer END) STORED,
    max_unfinished  bigint GENERATED ALWAYS AS ((limits::jsonb ->> 'max_unfinished_jobs')::bigint) STORED,
    rate            double precision GENERATED ALWAYS AS ((limits::jsonb ->> 'rate')::double precision) STORED,
    burst           double precision GENERATED ALWAYS AS ((limits::jsonb ->> 'burst')::double precision) STORED
);
-- Every call checks whether there are any limits at all.
CREATE INDEX tenants_bounded ON ingot.tenants (id) WHERE max_running IS NOT NULL;
CREATE INDEX tenants_capped ON ingot.tenants (id) WHERE max_unfinished IS NOT NULL OR rate IS NOT NULL;

-- How many jobs a tenant with a rate limit could enqueue at a time.
CREATE TABLE ingot.buckets (
    tenant      uuid PRIMARY KEY,
    jobs        double precision NOT NULL,
    at          bigint NOT NULL
);

-- The roles of workers that use the database directly, each for one tenant.
CREATE TABLE ingot.worker_roles (
    role        name PRIMARY KEY,
    tenant      uuid NOT NULL REFERENCES ingot.tenants
);

-- The server that these rows were written on, and the offset from its transaction IDs to positions in the event log. One
-- row. When a dump is restored on another server, new positions continue above the restored ones.
CREATE TABLE ingot.home (
    server      bigint PRIMARY KEY,
    shift       bigint NOT NULL
);

-- Each row has the events of one tenant in one transaction, in order, as a JSON array.
CREATE TABLE ingot.events (
    tenant      uuid NOT NULL,
    position    bigint NOT NULL,
    at          bigint NOT NULL,
    entries     text NOT NULL,
    PRIMARY KEY (tenant, position)
);
-- Every claim and settle writes entries. lz4 compresses them faster, if the server supports it.
DO $$
BEGIN
    ALTER TABLE ingot.events ALTER COLUMN entries SET COMPRESSION lz4;
EXCEPTION WHEN feature_not_supported THEN
    NULL;
END
$$;

-- The all-zero tenant stands for all tenants.
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
    max_running     integer GENERATED ALWAYS AS ((definition::jsonb ->> 'max_running')::integer) STORED,
    max_running_per_key integer GENERATED ALWAYS AS ((definition::jsonb ->> 'max_running_per_key')::integer) STORED,
    PRIMARY KEY (type, tenant)
);
-- The rule that an order must be made with: the template of its limit key, and whether it may reuse another job.
ALTER TABLE ingot.definitions ADD COLUMN rule text GENERATED ALWAYS AS (CASE
    WHEN definition::jsonb ->> 'limit_key' IS NOT NULL OR (definition::jsonb ->> 'reuse')::boolean THEN
        coalesce(definition::jsonb ->> 'limit_key', '') || E'\n'
        || CASE WHEN (definition::jsonb ->> 'reuse')::boolean THEN definition::jsonb ->> 'version' ELSE '' END
END) STORED;
CREATE INDEX definitions_bounded ON ingot.definitions (type)
    WHERE max_running IS NOT NULL OR max_running_per_key IS NOT NULL;

-- Types whose jobs are not claimed, by tenant.
CREATE TABLE ingot.pauses (
    tenant      uuid NOT NULL,
    type        text NOT NULL,
    since       bigint NOT NULL,
    by          text,
    PRIMARY KEY (tenant, type)
);

-- When a worker last asked for jobs of a type. The all-zero tenant stands for workers that serve all tenants.
CREATE TABLE ingot.askers (
    type        text NOT NULL,
    tenant      uuid NOT NULL,
    at          bigint NOT NULL,
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
    limit_key       text,
    batch           text,
    inputs          text[],
    reuse_key       bytea,
    depth           integer NOT NULL,
    drift           smallint    -- how far the time in the id is from `created_at`, as a class; NULL if near
);
-- Lists are read by id, newest first: by type, and by rare values. A list of all types merges those of each type. No id is
-- null; `NULLS FIRST` is an order that no primary key has, so a query with this order uses this index and no other.
CREATE INDEX jobs_by_type ON ingot.jobs (tenant, type, id NULLS FIRST);
CREATE INDEX jobs_by_source ON ingot.jobs (tenant, source, id NULLS FIRST) WHERE source <> 'manual';
CREATE INDEX jobs_by_drift ON ingot.jobs (tenant, drift, id NULLS FIRST) WHERE drift IS NOT NULL;

CREATE TABLE ingot.idempotency_keys (
    tenant      uuid NOT NULL,
    type        text NOT NULL,
    key         text NOT NULL,
    job         uuid NOT NULL,
    digest      bytea NOT NULL,
    PRIMARY KEY (tenant, type, key)
);

-- The job that is reused for orders with the same reuse key.
CREATE TABLE ingot.reuse_keys (
    tenant      uuid NOT NULL,
    type        text NOT NULL,
    key         bytea NOT NULL,
    job         uuid NOT NULL,
    PRIMARY KEY (tenant, type, key)
);

-- The unfinished job that has a dedupe key.
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
-- The tag comes first, so that the planner does not use this index to find the tags of one job.
CREATE INDEX tags_by_tag ON ingot.tags (tag, tenant, job NULLS FIRST);

CREATE TABLE ingot.ready (
    id              uuid PRIMARY KEY,
    tenant          uuid NOT NULL,
    type            text NOT NULL,
    limit_key       text NOT NULL,
    batch           text,
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
CREATE INDEX later_by_type ON ingot.later (tenant, type, id NULLS FIRST);

-- Jobs that wait for others: every edge is open until the other has ended.
CREATE TABLE ingot.blocked (LIKE ingot.ready INCLUDING CONSTRAINTS INCLUDING DEFAULTS, PRIMARY KEY (id));
CREATE INDEX blocked_by_type ON ingot.blocked (tenant, type, id NULLS FIRST);
CREATE TABLE ingot.waits (
    job         uuid NOT NULL,
    parent      uuid NOT NULL,
    tenant      uuid NOT NULL,
    runs_anyway boolean NOT NULL,       -- whether the job runs even if the parent is dead or canceled
    open        boolean NOT NULL DEFAULT true,
    PRIMARY KEY (job, parent)
);
CREATE INDEX waits_open ON ingot.waits (parent, job) WHERE open;

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
    changed_by          xid8 NOT NULL,              -- the transaction that wrote this row version
    PRIMARY KEY (id)
);
CREATE INDEX leases_in_order ON ingot.leases (expires_at);

-- Jobs that were canceled while they waited, with their last state.
CREATE TABLE ingot.canceled (
    LIKE ingot.ready INCLUDING CONSTRAINTS INCLUDING DEFAULTS,
    finished_at     bigint NOT NULL,
    PRIMARY KEY (id)
);
CREATE INDEX canceled_by_type ON ingot.canceled (tenant, type, id NULLS FIRST);

-- Attempts that have ended, and the state of the job after each.
CREATE TABLE ingot.outcomes (
    job                 uuid NOT NULL,
    fence               bigint NOT NULL,
    tenant              uuid NOT NULL,
    worker_id           text NOT NULL,
    host                text,
    pid                 bigint,
    started_at          bigint NOT NULL,
    outcome             text NOT NULL,      -- succeeded, failed, snoozed, released or lost
    retry               boolean NOT NULL,   -- whether the worker allowed a retry
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
CREATE INDEX outcomes_without_success ON ingot.outcomes (tenant, status_after, job NULLS FIRST)
    WHERE status_after IN ('dead', 'canceled');

-- When jobs finished: one row for the jobs of a tenant and type that finished in one call, so that jobs that are due for
-- removal are found without reading others. A job that was retried since is still listed, so readers check the job.
CREATE TABLE ingot.endings (
    tenant      uuid NOT NULL,
    type        text NOT NULL,
    finished_at bigint NOT NULL,
    size        integer NOT NULL,
    jobs        uuid[] NOT NULL
);
ALTER TABLE ingot.endings ALTER COLUMN jobs SET STORAGE EXTERNAL;  -- IDs hardly compress.
CREATE INDEX endings_in_order ON ingot.endings (tenant, type, finished_at);

-- Short entries about removed jobs.
CREATE TABLE ingot.history (
    tenant      uuid NOT NULL,
    finished_at bigint NOT NULL,
    id          uuid NOT NULL,
    type        text NOT NULL,
    status      text NOT NULL,
    attempts    integer NOT NULL,
    created_at  bigint NOT NULL,
    last_error  text,
    PRIMARY KEY (tenant, finished_at, id)
);
CREATE INDEX history_by_type ON ingot.history (tenant, type, finished_at, id);

-- The number of a tenant's jobs by type and status is `counts` plus all deltas that are not folded into it yet.
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

-- The same for batches: how many jobs were enqueued, and how many finished with each status. `told` is the total for which
-- `batch.completed` was last published.
CREATE TABLE ingot.batches (
    tenant      uuid NOT NULL,
    batch       text NOT NULL,
    total       bigint NOT NULL,
    succeeded   bigint NOT NULL,
    dead        bigint NOT NULL,
    canceled    bigint NOT NULL,
    told        bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, batch)
);
CREATE INDEX batches_to_tell ON ingot.batches (tenant, batch)
    WHERE total = succeeded + dead + canceled AND told <> total;
CREATE TABLE ingot.batch_deltas (
    tenant      uuid NOT NULL,
    batch       text NOT NULL,
    status      text NOT NULL,          -- the final status of the jobs, or 'queued' for enqueued jobs
    jobs        bigint NOT NULL
);
CREATE INDEX batch_deltas_by_batch ON ingot.batch_deltas (tenant, batch);

-- Privileges. Reads run as `ingot_server` with the tenant set for their transaction; without a tenant no rows are visible.
-- Every write is a function of `ingot_owner`, a role that cannot log in.
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
        'events', 'jobs', 'tags', 'ready', 'later', 'leases', 'canceled', 'outcomes', 'counts', 'count_deltas',
        'pauses', 'blocked', 'waits', 'batches', 'batch_deltas', 'endings', 'history'
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
