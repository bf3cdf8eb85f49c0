-- Work that has become due joins the ready work, the longest due first; answers the lanes it went to.
UPDATE states SET due = 1
WHERE id IN (
    SELECT id FROM states INDEXED BY states_later
    WHERE status = 'queued' AND due = 0 AND run_at <= ?
    ORDER BY run_at, id
    LIMIT ?
)
RETURNING type, tenant, limit_key
