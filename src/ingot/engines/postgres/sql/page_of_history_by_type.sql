-- Entries of the history of the tenant that is set, of one type, last finished first, below one position.
SELECT h.id::text, h.type, h.status, h.attempts, h.created_at, h.finished_at, h.last_error
FROM ingot.history AS h
WHERE h.tenant = $1 AND h.type = $5 AND (h.finished_at, h.id) < ($2, $3)
ORDER BY h.finished_at DESC, h.id DESC
LIMIT $4
