-- What attempts write, in the parts in which it came. `start` is how many characters the attempt had written before.

CREATE TABLE logs (
    job         INTEGER NOT NULL,
    fence       INTEGER NOT NULL,
    start       INTEGER NOT NULL,
    size        INTEGER NOT NULL,
    text        TEXT NOT NULL       -- last: where a log ends is asked without it
) STRICT;
CREATE UNIQUE INDEX logs_in_order ON logs (job, fence, start);
