-- People who have signed in, their sessions, and their roles in tenants.
-- Emails are compared in lower case, as stored in `email_lower`.
CREATE TABLE ingot.users (
    id              uuid PRIMARY KEY,
    issuer          text COLLATE "C" NOT NULL,
    subject         text COLLATE "C" NOT NULL,
    email           text,
    email_lower     text COLLATE "C",
    email_verified  boolean NOT NULL,
    name            text,
    picture         text,
    enabled         boolean NOT NULL,
    created_at      bigint NOT NULL,
    signed_in_at    bigint NOT NULL,
    UNIQUE (issuer, subject)
);
CREATE INDEX users_by_email ON ingot.users (email_lower, id);

-- The groups of a person at their last sign-in, and the groups with a role in a tenant.
CREATE TABLE ingot.user_groups (
    "user"          uuid NOT NULL REFERENCES ingot.users,
    name            text COLLATE "C" NOT NULL,
    PRIMARY KEY ("user", name)
);
CREATE INDEX user_groups_by_name ON ingot.user_groups (name, "user");

CREATE TABLE ingot.tenant_groups (
    tenant          uuid NOT NULL REFERENCES ingot.tenants,
    name            text COLLATE "C" NOT NULL,
    role            text COLLATE "C" NOT NULL CHECK (role IN ('admin', 'member', 'viewer')),
    PRIMARY KEY (tenant, name)
);
CREATE INDEX tenant_groups_by_name ON ingot.tenant_groups (name, tenant);

-- Roles of people, and invitations: roles for an email address, in lower case.
CREATE TABLE ingot.members (
    tenant          uuid NOT NULL REFERENCES ingot.tenants,
    "user"          uuid NOT NULL REFERENCES ingot.users,
    role            text COLLATE "C" NOT NULL CHECK (role IN ('admin', 'member', 'viewer')),
    created_at      bigint NOT NULL,
    created_by      text NOT NULL,
    PRIMARY KEY (tenant, "user")
);
CREATE INDEX members_of_user ON ingot.members ("user", tenant);

CREATE TABLE ingot.invitations (
    id              uuid PRIMARY KEY,
    tenant          uuid NOT NULL REFERENCES ingot.tenants,
    email           text COLLATE "C" NOT NULL,
    role            text COLLATE "C" NOT NULL CHECK (role IN ('admin', 'member', 'viewer')),
    created_at      bigint NOT NULL,
    created_by      text NOT NULL,
    UNIQUE (tenant, email)
);
CREATE INDEX invitations_of_tenant ON ingot.invitations (tenant, id);
CREATE INDEX invitations_by_email ON ingot.invitations (email, tenant);

-- Browsers in which a person is signed in. Only a digest of the session secret is stored.
CREATE TABLE ingot.sessions (
    id              uuid PRIMARY KEY,
    digest          bytea NOT NULL UNIQUE,
    "user"          uuid NOT NULL REFERENCES ingot.users,
    created_at      bigint NOT NULL,
    expires_at      bigint NOT NULL,
    last_used_at    bigint NOT NULL,
    address         text,
    agent           text
);
CREATE INDEX sessions_of_user ON ingot.sessions ("user", id);
CREATE INDEX sessions_by_end ON ingot.sessions (expires_at);

-- Sign-ins that have begun and are not complete.
CREATE TABLE ingot.logins (
    digest          bytea PRIMARY KEY,
    next            text NOT NULL,
    link            boolean NOT NULL,
    expires_at      bigint NOT NULL
);
CREATE INDEX logins_by_end ON ingot.logins (expires_at);

-- The person that a token belongs to. It ends with the person's access.
ALTER TABLE ingot.tokens ADD COLUMN "user" uuid REFERENCES ingot.users;
CREATE INDEX tokens_of_user ON ingot.tokens ("user", id) WHERE "user" IS NOT NULL;

-- Only functions read them: people belong to no tenant.
DO $$
DECLARE
    isolated name;
BEGIN
    FOREACH isolated IN ARRAY ARRAY[
        'users', 'user_groups', 'tenant_groups', 'members', 'invitations', 'sessions', 'logins'
    ] LOOP
        EXECUTE format('ALTER TABLE ingot.%I ENABLE ROW LEVEL SECURITY', isolated);
        EXECUTE format('ALTER TABLE ingot.%I FORCE ROW LEVEL SECURITY', isolated);
        EXECUTE format('CREATE POLICY owner ON ingot.%I TO ingot_owner USING (true) WITH CHECK (true)', isolated);
    END LOOP;
END
$$;
