-- Tenants, events, definitions and jobs.
--
-- A job has an immutable body (`jobs`) and one small row that changes (`states`). Partial indexes of `states` hold
-- ready jobs, jobs that are due later, leases by expiry, running jobs by limit key, and dedupe keys. A finished job is
-- in none of them, so claims cost the same with a history of any size. Attempts are inserted by the claim, outcomes at
-- the end.
--
-- Times are microseconds since 1970 UTC. Inside the file, tenants and jobs have small numbers in the order in which
-- they were accepted, so that keys are short and new rows go to the end of every B-tree.

CREATE TABLE store (
    only_row    INTEGER PRIMARY KEY CHECK (only_row = 1),
    epoch       INTEGER NOT NULL,   -- grows each time the store is opened; the high bits of every fence
    clock       INTEGER NOT NULL,   -- the latest time that this store has used
    last_number INTEGER NOT NULL    -- the highest job number so far; numbers are never reused
) STRICT;
INSERT INTO store VALUES (1, 0, 0, 0);

CREATE TABLE tenants (
    number      INTEGER PRIMARY KEY,
    id          TEXT NOT NULL UNIQUE,
    slug        TEXT NOT NULL UNIQUE,
    weight      INTEGER NOT NULL CHECK (weight > 0),
    time_zone   TEXT NOT NULL,
    limits      TEXT NOT NULL
) STRICT;

-- Each row holds the events of one tenant from one transaction, in order, as a JSON array.
CREATE TABLE events (
    tenant      INTEGER NOT NULL,
    batch       INTEGER NOT NULL,
    at          INTEGER NOT NULL,
    entries     BLOB NOT NULL,
    PRIMARY KEY (tenant, batch)
) STRICT, WITHOUT ROWID;

-- Definitions with tenant '' apply to all tenants.
CREATE TABLE definitions (
    tenant      TEXT NOT NULL,
    type        TEXT NOT NULL,
    definition  TEXT NOT NULL,
    PRIMARY KEY (tenant, type)
) STRICT, WITHOUT ROWID;

-- Jobs of a tenant and type that are not handed out.
CREATE TABLE pauses (
    tenant      INTEGER NOT NULL,
    type        TEXT NOT NULL,
    since       INTEGER NOT NULL,
    "by"        TEXT,
    PRIMARY KEY (tenant, type)
) STRICT, WITHOUT ROWID;

CREATE TABLE jobs (
    number          INTEGER PRIMARY KEY,
    created_at      INTEGER NOT NULL,   -- never less than that of a lower number
    source          TEXT NOT NULL CHECK (source IN ('manual', 'event', 'schedule', 'system', 'document')),
    source_ref      TEXT,
    created_by      TEXT,
    correlation_id  TEXT,
    trace_id        TEXT,
    idempotency_key TEXT,
    inputs          TEXT,       -- a JSON array
    reuse_key       BLOB,
    depth           INTEGER NOT NULL,
    payload         BLOB NOT NULL,  -- wide columns are last, so that reading others skips their overflow pages
    metadata        BLOB
) STRICT;
CREATE INDEX jobs_by_source ON jobs (source) WHERE source <> 'manual';

CREATE TABLE states (
    number              INTEGER PRIMARY KEY,
    id                  TEXT NOT NULL UNIQUE,
    tenant              INTEGER NOT NULL,
    type                TEXT NOT NULL,
    limit_key           TEXT NOT NULL,
    status              TEXT NOT NULL
                        CHECK (status IN ('blocked', 'queued', 'running', 'succeeded', 'dead', 'canceled')),
    due                 INTEGER NOT NULL CHECK (due IN (0, 1)),     -- if queued: 1 is ready, 0 waits for run_at
    priority            INTEGER NOT NULL CHECK (priority BETWEEN 1 AND 5),
    run_at              INTEGER NOT NULL,
    attempts            INTEGER NOT NULL,
    failures            INTEGER NOT NULL,
    crashes             INTEGER NOT NULL,
    max_attempts        INTEGER NOT NULL CHECK (max_attempts > 0),
    fence               INTEGER NOT NULL CHECK (fence < 9007199254740992),
    dedupe_key          TEXT,
    worker_id           TEXT,
    started_at          INTEGER,
    lease_expires_at    INTEGER,
    cancel_requested    INTEGER NOT NULL CHECK (cancel_requested IN (0, 1)),
    percent             REAL CHECK (percent BETWEEN 0 AND 100),
    stage               TEXT,
    told_at             INTEGER NOT NULL,   -- when progress was last reported in an event
    finished_at         INTEGER,
    batch               TEXT,
    CHECK ((status = 'running') = (lease_expires_at IS NOT NULL)),
    CHECK ((status IN ('succeeded', 'dead', 'canceled')) = (finished_at IS NOT NULL))
) STRICT;

CREATE INDEX states_ready ON states (type, tenant, limit_key, priority, run_at, id) WHERE status = 'queued' AND due = 1;
CREATE INDEX states_later ON states (run_at) WHERE status = 'queued' AND due = 0;
CREATE INDEX states_leased ON states (lease_expires_at, tenant) WHERE status = 'running';
CREATE INDEX states_keyed ON states (tenant, type, limit_key) WHERE status = 'running' AND limit_key <> '';
CREATE UNIQUE INDEX states_dedupe ON states (tenant, dedupe_key)
    WHERE dedupe_key IS NOT NULL AND status IN ('blocked', 'queued', 'running');
-- Lists are read by number, newest first. A job moves to the other index once, when it finishes.
CREATE INDEX states_live ON states (tenant, type) WHERE finished_at IS NULL;
CREATE INDEX states_finished ON states (tenant, status, type) WHERE finished_at IS NOT NULL;

-- The allowed changes of status, enforced by the database in case the code has a bug.
CREATE TRIGGER states_move BEFORE UPDATE OF status ON states
WHEN old.status <> new.status AND NOT (
    (old.status = 'blocked' AND new.status IN ('queued', 'canceled', 'dead'))
    OR (old.status = 'queued' AND new.status IN ('running', 'canceled'))
    OR (old.status = 'running' AND new.status IN ('queued', 'succeeded', 'dead', 'canceled'))
    OR (old.status IN ('succeeded', 'dead', 'canceled') AND new.status = 'queued')
)
BEGIN
    SELECT raise(ABORT, 'a job cannot move that way');
END;

-- Dependencies. An edge is open until the parent has ended, and the row stays after that.
CREATE TABLE waits (
    job         INTEGER NOT NULL,
    parent      INTEGER NOT NULL,
    parent_id   TEXT NOT NULL,      -- still reported when the parent has been removed
    runs_anyway INTEGER NOT NULL CHECK (runs_anyway IN (0, 1)),     -- a dead or canceled parent counts as succeeded
    open        INTEGER NOT NULL CHECK (open IN (0, 1)),
    PRIMARY KEY (job, parent)
) STRICT, WITHOUT ROWID;
CREATE INDEX waits_open ON waits (parent, job) WHERE open = 1;
CREATE INDEX waits_open_of_job ON waits (job) WHERE open = 1;

-- Jobs that can be reused for equivalent orders.
CREATE TABLE reuse_keys (
    tenant      INTEGER NOT NULL,
    type        TEXT NOT NULL,
    key         BLOB NOT NULL,
    job         INTEGER NOT NULL,
    PRIMARY KEY (tenant, type, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE idempotency_keys (
    tenant      INTEGER NOT NULL,
    type        TEXT NOT NULL,
    key         TEXT NOT NULL,
    job         INTEGER NOT NULL,
    digest      BLOB NOT NULL,
    PRIMARY KEY (tenant, type, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE tags (
    job         INTEGER NOT NULL,
    tag         TEXT NOT NULL,
    tenant      INTEGER NOT NULL,
    PRIMARY KEY (job, tag)
) STRICT, WITHOUT ROWID;
CREATE INDEX tags_by_tenant ON tags (tenant, tag, job);

CREATE TABLE attempts (
    job         INTEGER NOT NULL,
    fence       INTEGER NOT NULL,
    number      INTEGER NOT NULL,
    worker_id   TEXT NOT NULL,
    host        TEXT,
    pid         INTEGER,
    started_at  INTEGER NOT NULL,
    PRIMARY KEY (job, fence)
) STRICT, WITHOUT ROWID;

CREATE TABLE outcomes (
    job             INTEGER NOT NULL,
    fence           INTEGER NOT NULL,
    outcome         TEXT NOT NULL CHECK (outcome IN ('succeeded', 'failed', 'snoozed', 'released', 'lost')),
    retry           INTEGER NOT NULL,   -- whether the worker allowed another attempt
    status_after    TEXT NOT NULL,
    run_at          INTEGER,
    attempts        INTEGER NOT NULL,
    finished_at     INTEGER NOT NULL,
    exit_code       INTEGER,
    error           TEXT,
    result          BLOB,
    percent         REAL,
    stage           TEXT,
    PRIMARY KEY (job, fence)
) STRICT, WITHOUT ROWID;

CREATE TABLE counts (
    tenant      INTEGER NOT NULL,
    type        TEXT NOT NULL,
    status      TEXT NOT NULL,
    jobs        INTEGER NOT NULL,
    PRIMARY KEY (tenant, type, status)
) STRICT, WITHOUT ROWID;

-- Counters of batches: jobs that were enqueued, and those that have ended, by status.
CREATE TABLE batches (
    tenant      INTEGER NOT NULL,
    batch       TEXT NOT NULL,
    total       INTEGER NOT NULL,
    succeeded   INTEGER NOT NULL,
    dead        INTEGER NOT NULL,
    canceled    INTEGER NOT NULL,
    PRIMARY KEY (tenant, batch)
) STRICT, WITHOUT ROWID;

-- Finished jobs by time: one row for the jobs of a tenant and type that finished in one transaction, with a JSON array
-- of their numbers, so that jobs past their retention are found without reading others. A job that was retried since is
-- still listed here, so readers also check its state.
CREATE TABLE endings (
    batch       INTEGER PRIMARY KEY,
    tenant      INTEGER NOT NULL,
    type        TEXT NOT NULL,
    finished_at INTEGER NOT NULL,
    size        INTEGER NOT NULL,
    jobs        TEXT NOT NULL
) STRICT;
CREATE INDEX endings_in_order ON endings (tenant, type, finished_at);

-- Short entries about removed jobs.
CREATE TABLE history (
    tenant      INTEGER NOT NULL,
    finished_at INTEGER NOT NULL,
    id          TEXT NOT NULL,
    type        TEXT NOT NULL,
    status      TEXT NOT NULL,
    attempts    INTEGER NOT NULL,
    created_at  INTEGER NOT NULL,
    last_error  TEXT,
    PRIMARY KEY (tenant, finished_at, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX history_by_type ON history (tenant, type, finished_at, id);
