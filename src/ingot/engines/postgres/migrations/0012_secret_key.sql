-- By what the key of the servers is known: what one of them signs, all of them take. The key itself is not here.
CREATE TABLE ingot.secret_key (
    only_row    boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    fingerprint bytea NOT NULL
);

ALTER TABLE ingot.secret_key ENABLE ROW LEVEL SECURITY;
ALTER TABLE ingot.secret_key FORCE ROW LEVEL SECURITY;
CREATE POLICY owner ON ingot.secret_key TO ingot_owner USING (true) WITH CHECK (true);
