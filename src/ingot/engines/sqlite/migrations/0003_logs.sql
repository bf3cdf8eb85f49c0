-- Logs of attempts, in the chunks in which they arrived. `start` is the number of characters before the chunk.

CREATE TABLE logs (
    job         INTEGER NOT NULL,
    fence       INTEGER NOT NULL,
    start       INTEGER NOT NULL,
    size        INTEGER NOT NULL,
    text        TEXT NOT NULL       -- last: the end of a log is read without this column
) STRICT;
CREATE UNIQUE INDEX logs_in_order ON logs (job, fence, start);
