-- Dedupe keys of published events, each with its event; and how far the log of each tenant was removed.
-- Events are identified by the number that their ID encodes.

CREATE TABLE ingot.event_keys (
    tenant      uuid NOT NULL,
    key         text COLLATE "C" NOT NULL,
    digest      bytea NOT NULL,
    event       bigint NOT NULL,
    at          bigint NOT NULL,
    PRIMARY KEY (tenant, key)
);
CREATE INDEX event_keys_by_age ON ingot.event_keys (at);

CREATE TABLE ingot.event_floors (
    tenant      uuid PRIMARY KEY,
    event       bigint NOT NULL     -- the last removed event
);

DO $$
DECLARE
    isolated name;
BEGIN
    FOREACH isolated IN ARRAY ARRAY['event_keys', 'event_floors'] LOOP
        EXECUTE format('ALTER TABLE ingot.%I ENABLE ROW LEVEL SECURITY', isolated);
        EXECUTE format('ALTER TABLE ingot.%I FORCE ROW LEVEL SECURITY', isolated);
        EXECUTE format('CREATE POLICY owner ON ingot.%I TO ingot_owner USING (true) WITH CHECK (true)', isolated);
    END LOOP;
END
$$;
GRANT SELECT ON ingot.event_floors TO ingot_server;
CREATE POLICY tenant ON ingot.event_floors FOR SELECT TO ingot_server
    USING (tenant = nullif(current_setting('ingot.tenant', true), '')::uuid);
