-- A removed tenant has another ID and slug until all of its rows are deleted, so that its old ID and slug find nothing
-- and can be used again.
ALTER TABLE tenants ADD COLUMN removed_at INTEGER;
CREATE INDEX tenants_removed ON tenants (removed_at) WHERE removed_at IS NOT NULL;
