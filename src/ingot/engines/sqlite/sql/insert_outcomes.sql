-- How attempts ended. The row of VALUES is repeated for each.
INSERT INTO outcomes (
    job, fence, outcome, retry, status_after, run_at, attempts, finished_at, exit_code, error, result, percent, stage
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
