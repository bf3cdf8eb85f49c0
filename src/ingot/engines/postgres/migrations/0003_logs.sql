-- Logs of attempts, in the parts in which they were received. `start` is the number of characters before a part.

CREATE TABLE ingot.logs (
    job         uuid NOT NULL,
    fence       bigint NOT NULL,
    start       bigint NOT NULL,
    size        integer NOT NULL,
    tenant      uuid NOT NULL,
    text        text NOT NULL,
    PRIMARY KEY (job, fence, start)
);

ALTER TABLE ingot.logs ENABLE ROW LEVEL SECURITY;
ALTER TABLE ingot.logs FORCE ROW LEVEL SECURITY;
CREATE POLICY owner ON ingot.logs TO ingot_owner USING (true) WITH CHECK (true);
GRANT SELECT ON ingot.logs TO ingot_server;
CREATE POLICY tenant ON ingot.logs FOR SELECT TO ingot_server
    USING (tenant = nullif(current_setting('ingot.tenant', true), '')::uuid);
