-- How many jobs came from a rare source, counted so far and no further.
SELECT count(*) FROM (SELECT 1 FROM jobs INDEXED BY jobs_by_source WHERE source = ? AND source <> 'manual' LIMIT ?)
