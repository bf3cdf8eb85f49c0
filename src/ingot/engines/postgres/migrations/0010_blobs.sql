-- Blobs, uploads, and references to blobs.
--
-- Bytes are stored once: a blob is identified by its digest and belongs to no tenant. References are keys, job files, and
-- uploads that are unfinished or finished without a key. A deleted reference leaves a row in `tombstones`; these rows are
-- only inserted and deleted, so a statement deletes only rows that its snapshot saw.
-- A transaction that adds a reference locks the blob's row FOR KEY SHARE; one that collects the blob locks it FOR UPDATE. A
-- transaction that changes keys, uploads or job files of a tenant locks its row in `usage` with the owner ''. Only
-- applications that enqueue do not; they insert into `usage_owed`. Locks are taken in this order: the advisory lock for
-- blocked jobs of a tenant, jobs, leases, usage, uploads, blobs; several rows of one kind in the order of their keys.

-- The inputs of a job are blobs by name; an input that is not uploaded yet has no blob. The payload may be a blob too. A job
-- that was canceled because an input was not uploaded has an error.
DROP VIEW IF EXISTS ingot.job_rows;
ALTER TABLE ingot.jobs DROP COLUMN inputs, ADD COLUMN inputs jsonb, ADD COLUMN payload_blob bytea;
ALTER TABLE ingot.canceled ADD COLUMN error text;

CREATE TABLE ingot.blobs (
    digest      bytea PRIMARY KEY CHECK (length(digest) = 32),
    sha256      bytea NOT NULL CHECK (length(sha256) = 32),
    size        bigint NOT NULL CHECK (size >= 0),
    place       text COLLATE "C",           -- storage key; without one the bytes are in `blob_contents`
    damaged     boolean NOT NULL DEFAULT false,
    verified_at bigint NOT NULL             -- when it was stored or last verified
);
CREATE INDEX blobs_to_scrub ON ingot.blobs (verified_at, digest);

-- Wide values are in a table of their own: inline bytes, and the part checksums.
CREATE TABLE ingot.blob_contents (
    digest      bytea PRIMARY KEY,
    inline      bytea,
    checks      bytea NOT NULL
);
ALTER TABLE ingot.blob_contents ALTER COLUMN inline SET STORAGE EXTERNAL;  -- Most files are compressed already.
ALTER TABLE ingot.blob_contents ALTER COLUMN checks SET STORAGE EXTERNAL;

CREATE TABLE ingot.keys (
    tenant          uuid NOT NULL,
    key             text COLLATE "C" NOT NULL,
    blob            bytea NOT NULL,
    sha256          bytea NOT NULL,
    size            bigint NOT NULL,
    content_type    text NOT NULL,
    original_name   text,
    owner           text COLLATE "C" NOT NULL CHECK (owner <> ''),
    uploaded_at     bigint NOT NULL,
    upload          uuid NOT NULL,          -- the ID of the command that set it
    PRIMARY KEY (tenant, key)
);
CREATE INDEX keys_of_blob ON ingot.keys (blob, tenant);
CREATE INDEX keys_of_owner ON ingot.keys (tenant, owner, key);

-- `blob`, `sha256` and `size` are as announced until the upload is done, and then the actual values.
CREATE TABLE ingot.uploads (
    tenant          uuid NOT NULL,
    id              uuid NOT NULL,
    state           text NOT NULL CHECK (state IN ('open', 'verifying', 'done', 'failed')),
    epoch           integer NOT NULL,
    owner           text COLLATE "C" NOT NULL CHECK (owner <> ''),
    reserved        bigint NOT NULL CHECK (reserved >= 0),
    received        bigint NOT NULL CHECK (received >= 0),
    size            bigint CHECK (size >= 0),
    blob            bytea CHECK (length(blob) = 32),
    sha256          bytea CHECK (length(sha256) = 32),
    content_type    text NOT NULL,
    original_name   text,
    key             text COLLATE "C",
    if_match        text,
    job             uuid,
    fence           bigint,
    file            text CHECK (file IN ('input', 'output', 'log')),
    name            text,
    place           text COLLATE "C",
    multipart       text,
    error           text,
    created_at      bigint NOT NULL,
    expires_at      bigint NOT NULL,
    verifying_at    bigint,                 -- when all bytes had arrived
    done_at         bigint,
    -- Whether the upload itself refers to its blob. Once it is done, its key or job file does, except for outputs.
    refers          boolean NOT NULL GENERATED ALWAYS AS (
        state IN ('open', 'verifying') OR state = 'done' AND key IS NULL AND (file IS NULL OR file = 'output')
    ) STORED,
    PRIMARY KEY (tenant, id),
    CHECK ((job IS NULL) = (file IS NULL) AND (job IS NOT NULL OR fence IS NULL)),
    CHECK ((state = 'done') = (done_at IS NOT NULL)),
    CHECK (state IN ('open', 'verifying') OR (reserved = 0 AND place IS NULL))
);
CREATE INDEX uploads_of_blob ON ingot.uploads (blob, tenant) WHERE blob IS NOT NULL AND refers;
-- Finished outputs live as long as their attempt.
CREATE INDEX uploads_by_end ON ingot.uploads (expires_at) WHERE fence IS NULL OR state <> 'done';
CREATE INDEX uploads_of_jobs ON ingot.uploads (job, fence) WHERE job IS NOT NULL;
CREATE INDEX uploads_of_attempts ON ingot.uploads (job, fence) WHERE fence IS NOT NULL;
CREATE INDEX uploads_to_verify ON ingot.uploads (verifying_at) WHERE state = 'verifying';

-- Files of jobs: inputs, payloads, logs and outputs. Outputs are added when their attempt succeeds.
CREATE TABLE ingot.job_files (
    tenant          uuid NOT NULL,
    job             uuid NOT NULL,
    kind            text NOT NULL CHECK (kind IN ('input', 'output', 'log', 'payload')),
    name            text COLLATE "C" NOT NULL,
    blob            bytea NOT NULL,
    sha256          bytea NOT NULL,
    size            bigint NOT NULL,
    content_type    text NOT NULL,
    owner           text COLLATE "C" NOT NULL CHECK (owner <> ''),
    fence           bigint,                 -- of the attempt that created it
    since           bigint NOT NULL,
    PRIMARY KEY (job, kind, name)
);
CREATE INDEX job_files_of_blob ON ingot.job_files (blob, tenant);
CREATE INDEX job_files_made ON ingot.job_files (job) WHERE kind = 'output';

-- The usage of a tenant, with the owner '', and of each owner in it. It always equals a recount.
CREATE TABLE ingot.usage (
    tenant          uuid NOT NULL,
    owner           text COLLATE "C" NOT NULL,
    bytes           bigint NOT NULL DEFAULT 0 CHECK (bytes >= 0),
    reserved        bigint NOT NULL DEFAULT 0 CHECK (reserved >= 0),
    keys            bigint NOT NULL DEFAULT 0 CHECK (keys >= 0),
    key_bytes       bigint NOT NULL DEFAULT 0 CHECK (key_bytes >= 0),   -- the part of `bytes` in keys
    PRIMARY KEY (tenant, owner)
) WITH (fillfactor = 50);

-- Usage that applications have added. Their transactions may be long, so they take no lock on `usage`; the next transaction
-- that locks the usage of the tenant adds it.
CREATE TABLE ingot.usage_owed (
    tenant          uuid NOT NULL,
    owner           text COLLATE "C" NOT NULL,
    bytes           bigint NOT NULL
);
CREATE INDEX usage_owed_by_tenant ON ingot.usage_owed (tenant);

-- When references to a blob were deleted.
CREATE TABLE ingot.tombstones (
    digest      bytea NOT NULL,
    at          bigint NOT NULL
);
CREATE INDEX tombstones_in_order ON ingot.tombstones (at, digest);
CREATE INDEX tombstones_of_blob ON ingot.tombstones (digest, at);

-- Objects to delete.
CREATE TABLE ingot.trash (
    place       text COLLATE "C" PRIMARY KEY,
    multipart   text
);

-- The object store that has the objects of this database.
CREATE TABLE ingot.object_store (
    only_row    boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    id          text NOT NULL
);

-- Tenants see their own rows. Rows without a tenant are read only by functions, for tenants with a reference.
DO $$
DECLARE
    isolated name;
BEGIN
    FOREACH isolated IN ARRAY ARRAY[
        'blobs', 'blob_contents', 'tombstones', 'trash', 'object_store', 'usage_owed', 'keys', 'uploads', 'job_files', 'usage'
    ] LOOP
        EXECUTE format('ALTER TABLE ingot.%I ENABLE ROW LEVEL SECURITY', isolated);
        EXECUTE format('ALTER TABLE ingot.%I FORCE ROW LEVEL SECURITY', isolated);
        EXECUTE format('CREATE POLICY owner ON ingot.%I TO ingot_owner USING (true) WITH CHECK (true)', isolated);
    END LOOP;
    FOREACH isolated IN ARRAY ARRAY['keys', 'uploads', 'job_files', 'usage'] LOOP
        EXECUTE format('GRANT SELECT ON ingot.%I TO ingot_server', isolated);
        EXECUTE format(
            'CREATE POLICY tenant ON ingot.%I FOR SELECT TO ingot_server '
            'USING (tenant = nullif(current_setting(''ingot.tenant'', true), '''')::uuid)', isolated
        );
    END LOOP;
END
$$;
