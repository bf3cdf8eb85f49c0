-- Blobs belong to tenants: equal bytes of two tenants are two blobs with two objects. `holder` is the tenant, which may have
-- been removed. Blobs that tenants shared until now are divided, and their objects stay shared: several rows can have the same
-- `place`. A blob that no tenant referred to has the nil ID as its holder.
LOCK TABLE ingot.usage, ingot.uploads, ingot.blobs, ingot.blob_contents, ingot.keys, ingot.job_files, ingot.tombstones, ingot.trash
    IN ACCESS EXCLUSIVE MODE;

ALTER TABLE ingot.blobs ADD COLUMN holder uuid,
    ADD COLUMN etag text,                               -- of the object when it was verified
    ADD COLUMN sent_until bigint NOT NULL DEFAULT 0;    -- until when a client may have a URL to send the object to
ALTER TABLE ingot.blob_contents ADD COLUMN holder uuid;

CREATE TEMPORARY TABLE blob_holders ON COMMIT DROP AS
SELECT r.digest, r.tenant, row_number() OVER (PARTITION BY r.digest ORDER BY r.tenant) AS rank
FROM (
    SELECT k.blob AS digest, k.tenant FROM ingot.keys AS k
    UNION
    SELECT f.blob, f.tenant FROM ingot.job_files AS f
    UNION
    SELECT u.blob, u.tenant FROM ingot.uploads AS u WHERE u.state = 'done' AND u.refers AND u.blob IS NOT NULL
) AS r;
CREATE INDEX ON blob_holders (digest);
UPDATE ingot.blobs AS b SET holder = coalesce(
    (SELECT h.tenant FROM blob_holders AS h WHERE h.digest = b.digest AND h.rank = 1), '00000000-0000-0000-0000-000000000000'
);
UPDATE ingot.blob_contents AS c SET holder = (SELECT b.holder FROM ingot.blobs AS b WHERE b.digest = c.digest);
ALTER TABLE ingot.blobs DROP CONSTRAINT blobs_pkey, ALTER COLUMN holder SET NOT NULL, ADD PRIMARY KEY (digest, holder);
ALTER TABLE ingot.blob_contents DROP CONSTRAINT blob_contents_pkey, ALTER COLUMN holder SET NOT NULL,
    ADD PRIMARY KEY (digest, holder);
INSERT INTO ingot.blobs (holder, digest, sha256, size, place, damaged, verified_at)
SELECT h.tenant, b.digest, b.sha256, b.size, b.place, b.damaged, b.verified_at
FROM blob_holders AS h JOIN ingot.blobs AS b ON b.digest = h.digest WHERE h.rank > 1;
INSERT INTO ingot.blob_contents (holder, digest, inline, checks)
SELECT h.tenant, c.digest, c.inline, c.checks
FROM blob_holders AS h JOIN ingot.blob_contents AS c ON c.digest = h.digest WHERE h.rank > 1;
DROP INDEX ingot.blobs_to_scrub;
CREATE INDEX blobs_to_scrub ON ingot.blobs (verified_at, holder, digest);
DROP INDEX ingot.blobs_damaged;
CREATE INDEX blobs_damaged ON ingot.blobs (holder, digest) WHERE damaged;

-- A blob has a tombstone if no key, job file or done upload refers to it. Until it is gone, its bytes count as `deleted` against
-- the quota of the owner that deleted it.
CREATE TEMPORARY TABLE old_tombstones ON COMMIT DROP AS
SELECT t.digest, max(t.at) AS at FROM ingot.tombstones AS t GROUP BY t.digest;
DROP TABLE ingot.tombstones;
CREATE TABLE ingot.tombstones (
    holder      uuid NOT NULL,
    digest      bytea NOT NULL,
    at          bigint NOT NULL,
    owner       text COLLATE "C" NOT NULL,
    size        bigint NOT NULL,
    PRIMARY KEY (holder, digest)
);
INSERT INTO ingot.tombstones (holder, digest, at, owner, size)
SELECT b.holder, b.digest, coalesce(t.at, b.verified_at), '', 0
FROM ingot.blobs AS b LEFT JOIN old_tombstones AS t ON t.digest = b.digest WHERE b.holder = '00000000-0000-0000-0000-000000000000';
CREATE INDEX tombstones_in_order ON ingot.tombstones (at, holder, digest);
CREATE INDEX tombstones_of_holder ON ingot.tombstones (holder, at);
ALTER TABLE ingot.tombstones ENABLE ROW LEVEL SECURITY;
ALTER TABLE ingot.tombstones FORCE ROW LEVEL SECURITY;
CREATE POLICY owner ON ingot.tombstones TO ingot_owner USING (true) WITH CHECK (true);

-- The bytes of an object count until it is deleted. While a client may have a URL to send it, it is deleted twice: at once, and
-- when the URL has expired.
ALTER TABLE ingot.trash
    ADD COLUMN holder uuid,
    ADD COLUMN owner text COLLATE "C" NOT NULL DEFAULT '',
    ADD COLUMN size bigint NOT NULL DEFAULT 0,
    ADD COLUMN due_at bigint NOT NULL DEFAULT 0,        -- when to delete the object
    ADD COLUMN sent_until bigint NOT NULL DEFAULT 0;
CREATE INDEX trash_of_holder ON ingot.trash (holder, sent_until);
CREATE INDEX trash_by_url ON ingot.trash (sent_until);

ALTER TABLE ingot.uploads ADD COLUMN url_lifetime bigint NOT NULL DEFAULT 0;    -- how long a URL to send the object is valid at most
CREATE INDEX uploads_unfinished ON ingot.uploads (tenant) WHERE state IN ('open', 'verifying');
ALTER TABLE ingot.usage ADD COLUMN deleted bigint NOT NULL DEFAULT 0 CHECK (deleted >= 0);
ALTER TABLE ingot.blob_totals ADD COLUMN deleted bigint NOT NULL DEFAULT 0;
ALTER TABLE ingot.object_store ADD COLUMN grace bigint;                         -- how long deleted blobs are kept
