-- Tokens of programs and credentials of workers. Only digests of their secrets are stored.
-- Rows without a tenant are the operator's tokens, and the credentials of workers that serve all tenants.

CREATE TABLE tokens (
    id              TEXT PRIMARY KEY,
    tenant          INTEGER,
    digest          BLOB NOT NULL,
    description     TEXT NOT NULL,
    grants          TEXT NOT NULL,
    limits          TEXT NOT NULL,
    ending          TEXT NOT NULL,
    created_at      INTEGER NOT NULL,
    created_by      TEXT,
    expires_at      INTEGER,
    last_used_at    INTEGER,
    revoked_at      INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX tokens_of_tenant ON tokens (tenant, id);

CREATE TABLE worker_credentials (
    id              TEXT PRIMARY KEY,
    tenant          INTEGER,
    digest          BLOB NOT NULL,
    types           TEXT NOT NULL,
    enabled         INTEGER NOT NULL CHECK (enabled IN (0, 1)),
    ending          TEXT NOT NULL,
    created_at      INTEGER NOT NULL,
    created_by      TEXT,
    regenerated_at  INTEGER,
    last_used_at    INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX worker_credentials_of_tenant ON worker_credentials (tenant, id);
