-- The audit log: who changed what, from where, and how it was before. An act without a tenant is about the whole place.
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

-- Only functions show it, as some of it belongs to no tenant; and nothing in it is ever changed or taken away.
ALTER TABLE ingot.audit ENABLE ROW LEVEL SECURITY;
ALTER TABLE ingot.audit FORCE ROW LEVEL SECURITY;
CREATE POLICY owner_reads ON ingot.audit FOR SELECT TO ingot_owner USING (true);
CREATE POLICY owner_adds ON ingot.audit FOR INSERT TO ingot_owner WITH CHECK (true);
