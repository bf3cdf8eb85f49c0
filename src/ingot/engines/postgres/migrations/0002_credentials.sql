-- Credentials: tokens of programs and secrets of workers. Only digests of the secrets are stored.
-- Rows without a tenant are the operator's tokens, and credentials of workers that serve all tenants.

CREATE TABLE ingot.tokens (
    id              uuid PRIMARY KEY,
    tenant          uuid REFERENCES ingot.tenants,
    digest          bytea NOT NULL,
    description     text NOT NULL,
    grants          text NOT NULL,
    limits          text NOT NULL,
    ending          text NOT NULL,
    created_at      bigint NOT NULL,
    created_by      text,
    expires_at      bigint,
    last_used_at    bigint,
    revoked_at      bigint
);
CREATE INDEX tokens_of_tenant ON ingot.tokens (tenant, id);

CREATE TABLE ingot.worker_credentials (
    id              text COLLATE "C" PRIMARY KEY,
    tenant          uuid REFERENCES ingot.tenants,
    digest          bytea NOT NULL,
    types           text[] NOT NULL,
    enabled         boolean NOT NULL,
    ending          text NOT NULL,
    created_at      bigint NOT NULL,
    created_by      text,
    regenerated_at  bigint,
    last_used_at    bigint
);
CREATE INDEX worker_credentials_of_tenant ON ingot.worker_credentials (tenant, id);

-- Only functions read them: a caller that authenticates has no current tenant yet.
DO $$
DECLARE
    isolated name;
BEGIN
    FOREACH isolated IN ARRAY ARRAY['tokens', 'worker_credentials'] LOOP
        EXECUTE format('ALTER TABLE ingot.%I ENABLE ROW LEVEL SECURITY', isolated);
        EXECUTE format('ALTER TABLE ingot.%I FORCE ROW LEVEL SECURITY', isolated);
        EXECUTE format('CREATE POLICY owner ON ingot.%I TO ingot_owner USING (true) WITH CHECK (true)', isolated);
    END LOOP;
END
$$;
