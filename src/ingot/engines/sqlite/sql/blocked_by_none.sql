-- The moving rows of those of these blocked jobs (a JSON array of numbers) that wait for no job any more, nor for an
-- input that is still to come; those that must not run (another) wait for none.
SELECT CAST(json_group_array(json_array(
    s.number, s.id, t.id, s.type, s.limit_key, s.status, json(iif(s.due, 'true', 'false')), s.priority, s.run_at,
    s.attempts, s.failures, s.crashes, s.max_attempts, s.fence, s.dedupe_key, s.worker_id, s.started_at,
    s.lease_expires_at, json(iif(s.cancel_requested, 'true', 'false')), s.percent, s.stage, s.told_at, s.finished_at,
    s.batch) ORDER BY s.number) AS BLOB)
FROM states AS s JOIN tenants AS t ON t.number = s.tenant
WHERE s.number IN (SELECT value FROM json_each(?1)) AND s.status = 'blocked'
    AND NOT EXISTS (SELECT 1 FROM waits AS w INDEXED BY waits_open_of_job WHERE w.job = s.number AND w.open = 1)
    AND (
        s.number IN (SELECT value FROM json_each(?2)) OR NOT EXISTS (
            SELECT 1 FROM uploads AS u INDEXED BY uploads_of_jobs
            WHERE u.job_id = s.id AND u.job_id IS NOT NULL AND u.file = 'input' AND u.state IN ('open', 'verifying')
        )
    )
