-- The audit log: who changed what, from where, with the state before and after. Entries without a tenant concern the
-- whole installation.
CREATE TABLE audit (
    id              TEXT NOT NULL,
    tenant          TEXT,
    at              INTEGER NOT NULL,
    who             TEXT NOT NULL,
    name            TEXT,
    action          TEXT NOT NULL,
    target          TEXT NOT NULL,
    address         TEXT,
    request_id      TEXT,
    before          TEXT NOT NULL,
    after           TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX audit_by_id ON audit (id);
CREATE INDEX audit_of_tenant ON audit (tenant, id);

CREATE TRIGGER audit_stays BEFORE DELETE ON audit BEGIN SELECT raise(ABORT, 'the audit log is kept'); END;
CREATE TRIGGER audit_holds BEFORE UPDATE ON audit BEGIN SELECT raise(ABORT, 'the audit log is kept as it is'); END;
