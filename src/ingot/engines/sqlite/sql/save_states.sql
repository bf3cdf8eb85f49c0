-- Write back what moved. The row of VALUES is repeated for each job.
WITH new (
    number, status, due, priority, run_at, attempts, failures, crashes, max_attempts, fence, worker_id, started_at,
    lease_expires_at, cancel_requested, percent, stage, told_at, finished_at
) AS (VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?))
UPDATE states SET
    status = new.status, due = new.due, priority = new.priority, run_at = new.run_at, attempts = new.attempts,
    failures = new.failures, crashes = new.crashes, max_attempts = new.max_attempts, fence = new.fence,
    worker_id = new.worker_id, started_at = new.started_at, lease_expires_at = new.lease_expires_at,
    cancel_requested = new.cancel_requested, percent = new.percent, stage = new.stage, told_at = new.told_at,
    finished_at = new.finished_at
FROM new
WHERE states.number = new.number
