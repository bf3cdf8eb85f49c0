-- The fingerprint of the secret key that all servers share, so that each accepts what another one signed. The key itself is
-- not stored.
CREATE TABLE ingot.secret_key (
    only_row    boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    fingerprint bytea NOT NULL
);

ALTER TABLE ingot.secret_key ENABLE ROW LEVEL SECURITY;
ALTER TABLE ingot.secret_key FORCE ROW LEVEL SECURITY;
CREATE POLICY owner ON ingot.secret_key TO ingot_owner USING (true) WITH CHECK (true);
