-- Rows are found by storage key, and the object store records the ID of the database that owns its objects.
CREATE INDEX blobs_by_place ON blobs (place) WHERE place IS NOT NULL;
CREATE INDEX uploads_by_place ON uploads (place) WHERE place IS NOT NULL;
ALTER TABLE object_store ADD COLUMN database TEXT;
UPDATE object_store SET database = lower(hex(randomblob(16)));
