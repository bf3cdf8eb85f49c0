-- The audit log: who changed what, from which address, and the values before and after. Entries without a tenant concern the
-- whole installation.
CREATE TABLE ingot.audit (
    id              uuid PRIMARY KEY,
    tenant          uuid,
    at              bigint NOT NULL,
    who             text NOT NULL,
    name            text,
    action          text NOT NULL,
    target          text NOT NULL,
    address         text,
    request_id      text,
    before          text NOT NULL,
    after           text NOT NULL
);
CREATE INDEX audit_of_tenant ON ingot.audit (tenant, id);

-- Only functions read it, because some entries belong to no tenant. Entries are never changed or deleted.
ALTER TABLE ingot.audit ENABLE ROW LEVEL SECURITY;
ALTER TABLE ingot.audit FORCE ROW LEVEL SECURITY;
CREATE POLICY owner_reads ON ingot.audit FOR SELECT TO ingot_owner USING (true);
CREATE POLICY owner_adds ON ingot.audit FOR INSERT TO ingot_owner WITH CHECK (true);
