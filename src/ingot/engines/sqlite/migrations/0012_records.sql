-- Records: small objects of a tenant, or of all tenants (tenant ''). Definitions and pauses become kinds of records.
CREATE TABLE records (
    kind        TEXT NOT NULL,
    tenant      TEXT NOT NULL,
    name        TEXT NOT NULL,
    version     INTEGER NOT NULL CHECK (version > 0),
    body        TEXT NOT NULL,
    sealed      BLOB,               -- encrypted; only GetSealedValue reads it
    created_at  INTEGER NOT NULL,
    created_by  TEXT,
    updated_at  INTEGER NOT NULL,
    updated_by  TEXT,
    PRIMARY KEY (kind, tenant, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX records_of_tenant ON records (tenant);

INSERT INTO records (kind, tenant, name, version, body, created_at, updated_at)
SELECT 'definition', tenant, type, 1, definition, now.at, now.at
FROM definitions, (SELECT CAST(unixepoch('subsec') * 1000000 AS INTEGER) AS at) AS now;
INSERT INTO records (kind, tenant, name, version, body, created_at, created_by, updated_at, updated_by)
SELECT 'pause', t.id, p.type, 1, json_object('by', p."by"), p.since, p."by", p.since, p."by"
FROM pauses AS p JOIN tenants AS t ON t.number = p.tenant;
DROP TABLE definitions;
DROP TABLE pauses;

CREATE VIEW definitions AS SELECT tenant, name AS type, body AS definition FROM records WHERE kind = 'definition';
CREATE VIEW pauses AS SELECT tenant, name AS type, created_at AS since, body ->> 'by' AS "by" FROM records WHERE kind = 'pause';
