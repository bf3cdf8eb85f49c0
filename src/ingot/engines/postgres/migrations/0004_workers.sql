-- Registered workers. Those of the all-zero tenant serve all tenants.
CREATE TABLE ingot.workers (
    tenant          uuid NOT NULL,
    id              text COLLATE "C" NOT NULL,
    types           text[] NOT NULL,
    hostname        text,
    version         text,
    metadata        bytea,
    registered_at   bigint NOT NULL,
    registered_by   text,
    seen_at         bigint NOT NULL,
    online          boolean NOT NULL,
    draining        boolean NOT NULL,
    PRIMARY KEY (tenant, id)
);
CREATE INDEX workers_seen ON ingot.workers (online, seen_at);
CREATE INDEX workers_draining ON ingot.workers (id) WHERE draining;

-- Every heartbeat queries the leases of its worker.
CREATE INDEX leases_held ON ingot.leases (worker_id);

-- Only functions read them: workers that serve all tenants belong to none.
ALTER TABLE ingot.workers ENABLE ROW LEVEL SECURITY;
ALTER TABLE ingot.workers FORCE ROW LEVEL SECURITY;
CREATE POLICY owner ON ingot.workers TO ingot_owner USING (true) WITH CHECK (true);
