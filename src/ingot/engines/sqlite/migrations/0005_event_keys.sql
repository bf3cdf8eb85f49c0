-- Dedupe keys of published events, each with the event it stands for; and how far the log of a tenant was removed.
-- An event goes by the number that its id is written from.

CREATE TABLE event_keys (
    tenant      INTEGER NOT NULL,
    key         TEXT NOT NULL,
    digest      BLOB NOT NULL,
    batch       INTEGER NOT NULL,
    place       INTEGER NOT NULL,
    at          INTEGER NOT NULL,
    PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX event_keys_by_age ON event_keys (at);

CREATE TABLE event_floors (
    tenant      INTEGER PRIMARY KEY,
    batch       INTEGER NOT NULL,   -- the last that was removed,
    place       INTEGER NOT NULL    -- and the place of its last event
) STRICT;
