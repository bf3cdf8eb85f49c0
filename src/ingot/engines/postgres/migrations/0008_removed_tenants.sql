-- Removed tenants whose rows are being deleted. No rows were found since `empty_since`. The row is deleted once no running
-- transaction can add rows any more.
CREATE TABLE ingot.removed_tenants (
    tenant      uuid PRIMARY KEY,
    removed_at  bigint NOT NULL,
    empty_since bigint
);

ALTER TABLE ingot.removed_tenants ENABLE ROW LEVEL SECURITY;
ALTER TABLE ingot.removed_tenants FORCE ROW LEVEL SECURITY;
CREATE POLICY owner ON ingot.removed_tenants TO ingot_owner USING (true) WITH CHECK (true);
