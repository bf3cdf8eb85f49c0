-- Invitations have to be accepted, sessions act in a tenant of their own, and people can leave tenants.
-- `refused` is set when the provider identified a person and the sign-in was refused. `tenant` is the tenant that the
-- person chose last, and that of a session the one in which it acts.
ALTER TABLE ingot.users ADD COLUMN refused boolean NOT NULL DEFAULT false, ADD COLUMN tenant uuid;
ALTER TABLE ingot.sessions ADD COLUMN tenant uuid;
CREATE INDEX users_by_tenant ON ingot.users (tenant) WHERE tenant IS NOT NULL;
CREATE INDEX sessions_by_tenant ON ingot.sessions (tenant) WHERE tenant IS NOT NULL;

-- An invitation is for a verified email or for a person, and grants nothing before it is accepted. It can name a person
-- who does not exist.
ALTER TABLE ingot.invitations ALTER COLUMN email DROP NOT NULL, ADD COLUMN "user" uuid, ADD COLUMN expires_at bigint;
UPDATE ingot.invitations SET expires_at = (extract(epoch FROM now()) + 14 * 86400)::bigint * 1000000;
ALTER TABLE ingot.invitations ALTER COLUMN expires_at SET NOT NULL,
    ADD CHECK (num_nonnulls(email, "user") = 1), ADD UNIQUE (tenant, "user");
CREATE INDEX invitations_by_user ON ingot.invitations ("user", id) WHERE "user" IS NOT NULL;

-- People who left a tenant. Roles by group no longer apply to them there.
CREATE TABLE ingot.departures (
    tenant          uuid NOT NULL REFERENCES ingot.tenants,
    "user"          uuid NOT NULL REFERENCES ingot.users,
    left_at         bigint NOT NULL,
    PRIMARY KEY (tenant, "user")
);
ALTER TABLE ingot.departures ENABLE ROW LEVEL SECURITY;
ALTER TABLE ingot.departures FORCE ROW LEVEL SECURITY;
CREATE POLICY owner ON ingot.departures TO ingot_owner USING (true) WITH CHECK (true);

CREATE INDEX valid_tokens ON ingot.tokens (tenant) WHERE revoked_at IS NULL;

-- A person with roles in one tenant only has chosen it.
UPDATE ingot.users AS u SET tenant = (
    SELECT min(r.tenant::text)::uuid
    FROM (
        SELECT m.tenant FROM ingot.members AS m WHERE m."user" = u.id
        UNION
        SELECT t.tenant FROM ingot.user_groups AS g JOIN ingot.tenant_groups AS t ON t.name = g.name WHERE g."user" = u.id
    ) AS r
    HAVING count(*) = 1
);
UPDATE ingot.sessions AS s SET tenant = u.tenant FROM ingot.users AS u WHERE u.id = s."user";
