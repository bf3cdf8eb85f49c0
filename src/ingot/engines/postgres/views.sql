-- The current state of a job: its body and its one row with the status. Row-level security of the reader applies.
CREATE OR REPLACE VIEW ingot.job_rows WITH (security_invoker = true) AS
SELECT
    j.id, j.tenant, j.type,
    coalesce(h.status, CASE WHEN c.id IS NOT NULL THEN 'canceled' END, o.status_after) AS status,
    coalesce(h.priority, c.priority, o.priority) AS priority,
    coalesce(h.run_at, c.run_at, o.run_at) AS run_at,
    coalesce(h.attempts, c.attempts, o.attempts) AS attempts,
    coalesce(h.failures, c.failures, o.failures) AS failures,
    coalesce(h.crashes, c.crashes, o.crashes) AS crashes,
    coalesce(h.max_attempts, c.max_attempts, o.max_attempts) AS max_attempts,
    coalesce(h.fence, c.fence, o.fence) AS fence,
    h.worker_id, coalesce(h.started_at, o.started_at) AS started_at, h.expires_at,
    coalesce(h.cancel_requested, c.id IS NULL AND o.cancel_requested) AS cancel_requested,
    h.percent, h.stage,
    coalesce(h.told_at, c.told_at, o.told_at) AS told_at,
    CASE WHEN h.status IS NULL THEN coalesce(c.finished_at, o.finished_at) END AS finished_at,
    CASE WHEN h.status IS NULL AND c.id IS NULL AND o.status_after = 'succeeded' THEN o.result END AS result,
    j.payload, j.metadata, j.created_at, j.source, j.source_ref, j.created_by, j.correlation_id, j.trace_id,
    j.idempotency_key, j.dedupe_key, j.depth,
    ARRAY(SELECT g.tag FROM ingot.tags AS g WHERE g.job = j.id ORDER BY g.tag) AS tags,
    coalesce(c.error, CASE WHEN coalesce(h.failures + h.crashes, c.failures + c.crashes, o.failures + o.crashes) > 0 THEN (
        SELECT e.error FROM ingot.outcomes AS e WHERE e.job = j.id AND e.error IS NOT NULL ORDER BY e.fence DESC LIMIT 1
    ) END) AS last_error,
    coalesce(j.limit_key, '') AS limit_key, j.batch, j.inputs, j.reuse_key,
    ARRAY(SELECT w.parent::text FROM ingot.waits AS w WHERE w.job = j.id ORDER BY w.parent) AS after,
    EXISTS (SELECT FROM ingot.waits AS w WHERE w.job = j.id AND w.runs_anyway) AS runs_anyway,
    encode(j.payload_blob, 'hex') AS payload_blob
FROM ingot.jobs AS j
LEFT JOIN LATERAL (
    SELECT 'queued' AS status, r.priority, r.run_at, r.attempts, r.failures, r.crashes, r.max_attempts, r.fence, r.told_at,
        NULL::text AS worker_id, NULL::bigint AS started_at, NULL::bigint AS expires_at, false AS cancel_requested,
        NULL::double precision AS percent, NULL::text AS stage
    FROM ingot.ready AS r WHERE r.id = j.id
    UNION ALL
    SELECT 'queued', w.priority, w.run_at, w.attempts, w.failures, w.crashes, w.max_attempts, w.fence, w.told_at,
        NULL, NULL, NULL, false, NULL, NULL
    FROM ingot.later AS w WHERE w.id = j.id
    UNION ALL
    SELECT 'blocked', b.priority, b.run_at, b.attempts, b.failures, b.crashes, b.max_attempts, b.fence, b.told_at,
        NULL, NULL, NULL, false, NULL, NULL
    FROM ingot.blocked AS b WHERE b.id = j.id
    UNION ALL
    SELECT 'running', l.priority, l.run_at, l.attempts, l.failures, l.crashes, l.max_attempts, l.fence, l.told_at,
        l.worker_id, l.started_at, l.expires_at, l.cancel_requested, l.percent, l.stage
    FROM ingot.leases AS l WHERE l.id = j.id
) AS h ON true
LEFT JOIN ingot.canceled AS c ON c.id = j.id
LEFT JOIN LATERAL (
    SELECT o.* FROM ingot.outcomes AS o WHERE o.job = j.id ORDER BY o.fence DESC LIMIT 1
) AS o ON true;

-- All attempts: ended and running ones.
CREATE OR REPLACE VIEW ingot.attempts WITH (security_invoker = true) AS
SELECT o.job, o.fence, o.tenant, o.attempts AS number, o.worker_id, o.host, o.pid, o.started_at, o.outcome, o.status_after,
    o.finished_at, o.exit_code, o.error, o.percent, o.stage
FROM ingot.outcomes AS o
UNION ALL
SELECT l.id, l.fence, l.tenant, l.attempts, l.worker_id, l.host, l.pid, l.started_at, NULL, NULL,
    NULL, NULL, NULL, NULL, NULL
FROM ingot.leases AS l;

-- Definitions and pauses, for the functions that enqueue, claim and settle. Other roles cannot read these views.
CREATE OR REPLACE VIEW ingot.definitions AS
SELECT tenant, name AS type, body AS definition, priority, max_attempts, crash_cap, timeout_seconds, first_seconds, factor,
    max_seconds, max_running, max_running_per_key, rule
FROM ingot.records WHERE kind = 'definition';

CREATE OR REPLACE VIEW ingot.pauses AS
SELECT tenant, name AS type FROM ingot.records WHERE kind = 'pause';
