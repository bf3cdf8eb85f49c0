-- Registered workers. Those of tenant 0 serve all tenants.
CREATE TABLE workers (
    tenant          INTEGER NOT NULL,
    id              TEXT NOT NULL,
    types           TEXT NOT NULL,
    hostname        TEXT,
    version         TEXT,
    metadata        BLOB,
    registered_at   INTEGER NOT NULL,
    registered_by   TEXT,
    seen_at         INTEGER NOT NULL,
    online          INTEGER NOT NULL CHECK (online IN (0, 1)),
    draining        INTEGER NOT NULL CHECK (draining IN (0, 1)),
    PRIMARY KEY (tenant, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX workers_seen ON workers (online, seen_at);
CREATE INDEX workers_draining ON workers (draining) WHERE draining = 1;

-- Every heartbeat reads the leases of its worker.
CREATE INDEX states_held ON states (worker_id) WHERE status = 'running';
