-- The number and size of all blobs: the sum of all rows. Rows are inserted and later replaced by their sum, so transactions
-- that store blobs do not wait for each other.
CREATE TABLE ingot.blob_totals (
    blobs       bigint NOT NULL,
    bytes       bigint NOT NULL
);
ALTER TABLE ingot.blob_totals ENABLE ROW LEVEL SECURITY;
ALTER TABLE ingot.blob_totals FORCE ROW LEVEL SECURITY;
CREATE POLICY owner ON ingot.blob_totals TO ingot_owner USING (true) WITH CHECK (true);

LOCK TABLE ingot.blobs IN SHARE ROW EXCLUSIVE MODE;
INSERT INTO ingot.blob_totals (blobs, bytes) SELECT count(*), coalesce(sum(size), 0) FROM ingot.blobs;
CREATE INDEX blobs_damaged ON ingot.blobs (digest) WHERE damaged;
