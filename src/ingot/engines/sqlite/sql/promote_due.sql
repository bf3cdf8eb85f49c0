-- Work that has become due joins the ready work, the longest due first; answers the lanes it went to.
UPDATE states SET due = 1
WHERE number IN (
    SELECT number FROM states INDEXED BY states_later
    WHERE status = 'queued' AND due = 0 AND run_at <= ?
    ORDER BY run_at, number
    LIMIT ?
)
RETURNING type, (SELECT id FROM tenants WHERE number = tenant), limit_key
