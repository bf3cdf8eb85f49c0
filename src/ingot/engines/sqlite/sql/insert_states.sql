-- New jobs begin to move. The row of VALUES is repeated for each.
INSERT INTO states (
    number, id, tenant, type, limit_key, dedupe_key, status, due, priority, run_at, max_attempts, batch,
    attempts, failures, crashes, fence, cancel_requested, told_at
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, 0, 0, 0, 0)
