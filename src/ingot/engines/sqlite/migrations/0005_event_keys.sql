-- Dedupe keys of published events, and the last removed event of each tenant.
-- An event is identified by its batch and its index in the batch (`place`), from which its ID is formatted.

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
    batch       INTEGER NOT NULL,   -- the last batch that was removed
    place       INTEGER NOT NULL    -- the index of the last event in it
) STRICT;
