-- Objects are found by their place, and their store knows by a name whose they are.
CREATE INDEX blobs_by_place ON blobs (place) WHERE place IS NOT NULL;
CREATE INDEX uploads_by_place ON uploads (place) WHERE place IS NOT NULL;
ALTER TABLE object_store ADD COLUMN database TEXT;
UPDATE object_store SET database = lower(hex(randomblob(16)));
