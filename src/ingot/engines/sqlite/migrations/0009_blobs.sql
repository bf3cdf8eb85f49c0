-- Blobs, uploads, and references to blobs.
-- Digests are 32 raw bytes. Inside the file a blob has a number. No row names a deleted blob, so its number can be used
-- again. Wide columns are in separate tables: inline bytes, and part checksums of objects.

CREATE TABLE blobs (
    number      INTEGER PRIMARY KEY,
    id          BLOB NOT NULL UNIQUE CHECK (length(id) = 32),
    sha256      BLOB NOT NULL CHECK (length(sha256) = 32),
    size        INTEGER NOT NULL CHECK (size >= 0),
    place       TEXT,               -- the storage key; NULL if the bytes are in `blob_bytes`
    damaged     INTEGER NOT NULL CHECK (damaged IN (0, 1)),
    verified_at INTEGER NOT NULL    -- when it was stored or last read completely
) STRICT;
CREATE INDEX blobs_to_scrub ON blobs (verified_at);
CREATE INDEX blobs_damaged ON blobs (number) WHERE damaged = 1;

CREATE TABLE blob_bytes (
    blob        INTEGER PRIMARY KEY,
    bytes       BLOB NOT NULL
) STRICT;

CREATE TABLE blob_checks (
    blob        INTEGER PRIMARY KEY,
    checks      BLOB NOT NULL
) STRICT;

-- The number of blobs and their total size.
CREATE TABLE blob_totals (
    only_row    INTEGER PRIMARY KEY CHECK (only_row = 1),
    blobs       INTEGER NOT NULL CHECK (blobs >= 0),
    bytes       INTEGER NOT NULL CHECK (bytes >= 0)
) STRICT;
INSERT INTO blob_totals VALUES (1, 0, 0);

-- Names for blobs, in the order of their UTF-8 bytes.
CREATE TABLE keys (
    tenant          INTEGER NOT NULL,
    key             TEXT NOT NULL,
    blob            INTEGER NOT NULL,
    content_type    TEXT NOT NULL,
    original_name   TEXT,
    owner           TEXT NOT NULL,
    uploaded_at     INTEGER NOT NULL,
    upload          TEXT NOT NULL,      -- the ID of the upload or command that set it
    PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX keys_by_blob ON keys (blob, tenant);
CREATE INDEX keys_by_owner ON keys (tenant, owner);

-- Uploads. `blob_id`, `sha256` and `size` are the announced values, and the actual ones when the upload is done. An
-- upload refers to its blob (and is in `uploads_by_blob`) while it is open or verifying, and when it is done without a
-- key or a job file. An output becomes a job file only when its attempt has succeeded.
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
    file            TEXT CHECK (file IN ('input', 'output', 'log')),
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
CREATE INDEX uploads_by_blob ON uploads (blob_id, tenant)
    WHERE blob_id IS NOT NULL AND (
        state IN ('open', 'verifying') OR (state = 'done' AND key IS NULL AND (file IS NULL OR file = 'output')));
CREATE INDEX uploads_by_end ON uploads (expires_at) WHERE fence IS NULL OR state <> 'done';
CREATE INDEX uploads_of_jobs ON uploads (job_id, fence) WHERE job_id IS NOT NULL;
CREATE INDEX uploads_to_verify ON uploads (verifying_at) WHERE state = 'verifying';

-- Inputs, outputs and other files of jobs.
CREATE TABLE job_files (
    tenant          INTEGER NOT NULL,
    job             INTEGER NOT NULL,
    kind            TEXT NOT NULL CHECK (kind IN ('input', 'output', 'log', 'payload')),
    name            TEXT NOT NULL,
    blob            INTEGER NOT NULL,
    content_type    TEXT NOT NULL,
    owner           TEXT NOT NULL,
    fence           INTEGER,            -- of the attempt that produced it
    since           INTEGER NOT NULL,
    PRIMARY KEY (job, kind, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX job_files_by_blob ON job_files (blob, tenant);

-- Usage of each owner, and of the whole tenant under owner ''. Exact: updated in the transaction that changes the rows.
CREATE TABLE usage (
    tenant      INTEGER NOT NULL,
    owner       TEXT NOT NULL,
    bytes       INTEGER NOT NULL CHECK (bytes >= 0),
    reserved    INTEGER NOT NULL CHECK (reserved >= 0),
    keys        INTEGER NOT NULL CHECK (keys >= 0),
    key_bytes   INTEGER NOT NULL CHECK (key_bytes >= 0),    -- the part of `bytes` that belongs to keys
    PRIMARY KEY (tenant, owner)
) STRICT, WITHOUT ROWID;

-- Blobs that lost a reference, and when they last lost one.
CREATE TABLE tombstones (
    blob        INTEGER PRIMARY KEY,
    at          INTEGER NOT NULL
) STRICT;
CREATE INDEX tombstones_by_age ON tombstones (at);

-- Objects to delete.
CREATE TABLE trash (
    number      INTEGER PRIMARY KEY,
    place       TEXT NOT NULL UNIQUE,
    multipart   TEXT
) STRICT;

-- The ID of the object store that has the objects.
CREATE TABLE object_store (
    only_row    INTEGER PRIMARY KEY CHECK (only_row = 1),
    id          TEXT NOT NULL
) STRICT;

-- `inputs` becomes a JSON object: blob IDs by name, and `null` for an input that is not uploaded yet. The inputs of
-- existing jobs are named by their position.
UPDATE jobs SET inputs = (SELECT json_group_object(CAST(e.key + 1 AS TEXT), e.value) FROM json_each(jobs.inputs) AS e)
WHERE inputs IS NOT NULL;
ALTER TABLE jobs ADD COLUMN payload_blob TEXT;   -- the ID of the blob that contains the payload
ALTER TABLE jobs ADD COLUMN reason TEXT;         -- why the job was canceled, if an input was not uploaded
