-- Running servers. `since` is the beginning of the time in which a server renewed its row without a gap, and `seen_at` is 0
-- for a server that has ended.
CREATE TABLE ingot.servers (
    id      uuid PRIMARY KEY,
    store   text NOT NULL,
    since   bigint NOT NULL,
    seen_at bigint NOT NULL
);
ALTER TABLE ingot.servers ENABLE ROW LEVEL SECURITY;
ALTER TABLE ingot.servers FORCE ROW LEVEL SECURITY;
CREATE POLICY owner ON ingot.servers TO ingot_owner USING (true) WITH CHECK (true);

-- The server that receives the bytes of an upload in one request; NULL if a client can continue the upload.
ALTER TABLE ingot.uploads ADD COLUMN server uuid;
CREATE INDEX uploads_of_servers ON ingot.uploads (server) WHERE server IS NOT NULL AND state IN ('open', 'verifying');
