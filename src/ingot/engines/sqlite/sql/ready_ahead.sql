-- How many ready jobs of its lane go before one, up to a bound.
SELECT count(*) FROM (
    SELECT 1 FROM states INDEXED BY states_ready
    WHERE status = 'queued' AND due = 1 AND type = ? AND tenant = ? AND limit_key = ?
        AND (priority, run_at, id) < (?, ?, ?)
    LIMIT ?
)
