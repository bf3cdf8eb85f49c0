-- New jobs wait for others. The row of VALUES is repeated for each edge.
INSERT INTO waits (job, parent, parent_id, runs_anyway, open) VALUES (?, ?, ?, ?, 1)
