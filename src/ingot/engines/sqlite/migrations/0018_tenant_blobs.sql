-- Blobs belong to tenants: equal bytes of two tenants are two blobs with two objects. `holder` is the number of the tenant,
-- or the negative number of the blob if no tenant has it any more. Blobs that tenants shared until now are divided, and
-- their objects stay shared: several rows can have the same `place`.
ALTER TABLE blobs RENAME TO old_blobs;
CREATE TABLE blob_holders AS
SELECT r.blob, r.tenant, row_number() OVER (PARTITION BY r.blob ORDER BY r.tenant) AS rank, r.blob AS number
FROM (
    SELECT blob, tenant FROM keys
    UNION
    SELECT blob, tenant FROM job_files
    UNION
    SELECT b.number, u.tenant FROM uploads AS u JOIN old_blobs AS b ON b.id = u.blob_id
    WHERE u.state = 'done' AND u.key IS NULL AND (u.file IS NULL OR u.file = 'output')
) AS r;
DELETE FROM blob_holders WHERE blob NOT IN (SELECT number FROM old_blobs);
UPDATE blob_holders SET number = (SELECT max(number) FROM old_blobs) + o.ordinal
FROM (SELECT blob, tenant, row_number() OVER () AS ordinal FROM blob_holders WHERE rank > 1) AS o
WHERE blob_holders.blob = o.blob AND blob_holders.tenant = o.tenant;
CREATE INDEX blob_holders_by_blob ON blob_holders (blob, tenant);

CREATE TABLE blobs (
    number      INTEGER PRIMARY KEY,
    holder      INTEGER NOT NULL,
    id          BLOB NOT NULL CHECK (length(id) = 32),
    sha256      BLOB NOT NULL CHECK (length(sha256) = 32),
    size        INTEGER NOT NULL CHECK (size >= 0),
    place       TEXT,               -- the storage key; NULL if the bytes are in `blob_bytes`
    damaged     INTEGER NOT NULL CHECK (damaged IN (0, 1)),
    verified_at INTEGER NOT NULL,   -- when it was stored or last read completely
    etag        TEXT,               -- of the object when it was verified
    sent_until  INTEGER NOT NULL,   -- until when a client may have a URL to send the object to
    UNIQUE (holder, id)
) STRICT;
INSERT INTO blobs
SELECT coalesce(h.number, b.number), coalesce(h.tenant, -b.number), b.id, b.sha256, b.size, b.place, b.damaged, b.verified_at,
    NULL, 0
FROM old_blobs AS b LEFT JOIN blob_holders AS h ON h.blob = b.number;
DROP TABLE old_blobs;
CREATE INDEX blobs_to_scrub ON blobs (verified_at) WHERE holder > 0;
CREATE INDEX blobs_damaged ON blobs (number) WHERE damaged = 1;
CREATE INDEX blobs_by_place ON blobs (place) WHERE place IS NOT NULL;

INSERT INTO blob_bytes SELECT h.number, y.bytes FROM blob_holders AS h JOIN blob_bytes AS y ON y.blob = h.blob WHERE h.rank > 1;
INSERT INTO blob_checks SELECT h.number, c.checks FROM blob_holders AS h JOIN blob_checks AS c ON c.blob = h.blob WHERE h.rank > 1;
UPDATE keys SET blob = h.number FROM blob_holders AS h WHERE h.blob = keys.blob AND h.tenant = keys.tenant AND h.rank > 1;
UPDATE job_files SET blob = h.number
FROM blob_holders AS h WHERE h.blob = job_files.blob AND h.tenant = job_files.tenant AND h.rank > 1;

-- A blob has a tombstone exactly if no key, job file or done upload refers to it. Until it is gone, its bytes count as
-- `deleted` against the quota of the owner that deleted it. The holder is NULL if it was removed.
ALTER TABLE tombstones RENAME TO old_tombstones;
CREATE TABLE tombstones (
    blob        INTEGER PRIMARY KEY,
    at          INTEGER NOT NULL,
    holder      INTEGER,
    owner       TEXT NOT NULL,
    size        INTEGER NOT NULL
) STRICT;
INSERT INTO tombstones
SELECT b.number, coalesce((SELECT t.at FROM old_tombstones AS t WHERE t.blob = b.number), b.verified_at), NULL, '', 0
FROM blobs AS b WHERE b.holder < 0;
DROP TABLE old_tombstones;
DROP TABLE blob_holders;
CREATE INDEX tombstones_by_age ON tombstones (at, blob);
CREATE INDEX tombstones_of_holder ON tombstones (holder, at) WHERE holder IS NOT NULL;

-- The bytes of an object count until it is deleted. While a client may have a URL to send it, it is deleted twice: at once,
-- and when the URL has expired.
ALTER TABLE trash ADD COLUMN holder INTEGER;
ALTER TABLE trash ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE trash ADD COLUMN size INTEGER NOT NULL DEFAULT 0;
ALTER TABLE trash ADD COLUMN due_at INTEGER NOT NULL DEFAULT 0;         -- when to delete the object
ALTER TABLE trash ADD COLUMN sent_until INTEGER NOT NULL DEFAULT 0;
CREATE INDEX trash_of_holder ON trash (holder, sent_until) WHERE holder IS NOT NULL;
CREATE INDEX trash_by_url ON trash (sent_until);

ALTER TABLE uploads ADD COLUMN url_lifetime INTEGER NOT NULL DEFAULT 0; -- how long a URL to send the object is valid at most
CREATE INDEX uploads_unfinished ON uploads (tenant) WHERE state IN ('open', 'verifying');
ALTER TABLE usage ADD COLUMN deleted INTEGER NOT NULL DEFAULT 0 CHECK (deleted >= 0);
ALTER TABLE blob_totals ADD COLUMN deleted INTEGER NOT NULL DEFAULT 0 CHECK (deleted >= 0);
ALTER TABLE object_store ADD COLUMN grace INTEGER;                      -- how long deleted blobs are kept
