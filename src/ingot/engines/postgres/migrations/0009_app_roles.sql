-- The roles of users' applications, each with access to one tenant. They enqueue and publish inside their own transactions.
CREATE TABLE ingot.app_roles (
    role        name PRIMARY KEY,
    tenant      uuid NOT NULL REFERENCES ingot.tenants
);

ALTER TABLE ingot.app_roles ENABLE ROW LEVEL SECURITY;
ALTER TABLE ingot.app_roles FORCE ROW LEVEL SECURITY;
CREATE POLICY owner ON ingot.app_roles TO ingot_owner USING (true) WITH CHECK (true);
GRANT USAGE ON SCHEMA ingot TO ingot_app;
