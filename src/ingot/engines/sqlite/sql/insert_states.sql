-- New jobs begin to move. The row of VALUES is repeated for each.
INSERT INTO states (
    number, id, tenant, type, limit_key, dedupe_key, status, due, priority, run_at, attempts, failures, crashes,
    max_attempts, fence, worker_id, started_at, lease_expires_at, cancel_requested, percent, stage, told_at, finished_at
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
