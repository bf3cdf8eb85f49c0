-- A tenant that was removed goes by another id and slug until all it held is gone, so that nobody who asks for it by its
-- own finds anything, and both are free.
ALTER TABLE tenants ADD COLUMN removed_at INTEGER;
CREATE INDEX tenants_removed ON tenants (removed_at) WHERE removed_at IS NOT NULL;
