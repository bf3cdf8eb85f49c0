-- Checkpoints. SQLite cannot change the CHECK of a column, so the tables are created again.

ALTER TABLE uploads RENAME TO old_uploads;
CREATE TABLE uploads (
    tenant          INTEGER NOT NULL,
    id              TEXT NOT NULL,
    state           TEXT NOT NULL CHECK (state IN ('open', 'verifying', 'done', 'failed')),
    epoch           INTEGER NOT NULL,
    owner           TEXT NOT NULL,
    reserved        INTEGER NOT NULL CHECK (reserved >= 0),
    received        INTEGER NOT NULL CHECK (received >= 0),
    size            INTEGER CHECK (size >= 0),
    blob_id         BLOB CHECK (length(blob_id) = 32),
    sha256          BLOB CHECK (length(sha256) = 32),
    content_type    TEXT NOT NULL,
    original_name   TEXT,
    key             TEXT,
    if_match        TEXT,
    job_id          TEXT,
    fence           INTEGER,
    file            TEXT CHECK (file IN ('input', 'output', 'log', 'checkpoint')),
    name            TEXT,
    place           TEXT,
    multipart       TEXT,
    error           TEXT,
    created_at      INTEGER NOT NULL,
    expires_at      INTEGER NOT NULL,
    verifying_at    INTEGER,            -- when all of its bytes had arrived
    done_at         INTEGER,
    PRIMARY KEY (tenant, id),
    CHECK ((state = 'done') = (done_at IS NOT NULL)),
    CHECK (state IN ('open', 'verifying') OR (reserved = 0 AND place IS NULL))
) STRICT, WITHOUT ROWID;
INSERT INTO uploads SELECT * FROM old_uploads;
DROP TABLE old_uploads;
CREATE INDEX uploads_by_blob ON uploads (blob_id, tenant)
    WHERE blob_id IS NOT NULL AND (
        state IN ('open', 'verifying') OR (state = 'done' AND key IS NULL AND (file IS NULL OR file = 'output')));
CREATE INDEX uploads_by_end ON uploads (expires_at) WHERE fence IS NULL OR state <> 'done';
CREATE INDEX uploads_of_jobs ON uploads (job_id, fence) WHERE job_id IS NOT NULL;
CREATE INDEX uploads_to_verify ON uploads (verifying_at) WHERE state = 'verifying';
CREATE INDEX uploads_by_place ON uploads (place) WHERE place IS NOT NULL;

ALTER TABLE job_files RENAME TO old_job_files;
CREATE TABLE job_files (
    tenant          INTEGER NOT NULL,
    job             INTEGER NOT NULL,
    kind            TEXT NOT NULL CHECK (kind IN ('input', 'output', 'log', 'payload', 'checkpoint')),
    name            TEXT NOT NULL,
    blob            INTEGER NOT NULL,
    content_type    TEXT NOT NULL,
    owner           TEXT NOT NULL,
    fence           INTEGER,            -- of the attempt that produced it
    since           INTEGER NOT NULL,
    PRIMARY KEY (job, kind, name)
) STRICT, WITHOUT ROWID;
INSERT INTO job_files SELECT * FROM old_job_files;
DROP TABLE old_job_files;
CREATE INDEX job_files_by_blob ON job_files (blob, tenant);
