-- Objects are looked up by storage key, and are marked in the store with the name of their database.
CREATE INDEX blobs_by_place ON ingot.blobs (place) WHERE place IS NOT NULL;
CREATE INDEX uploads_by_place ON ingot.uploads (place) WHERE place IS NOT NULL;
ALTER TABLE ingot.object_store ADD COLUMN database text NOT NULL DEFAULT gen_random_uuid()::text;
