-- When the longest waiting ready job of a tenant became due: the head of every lane and priority, never a full look.
SELECT min((
    SELECT min(run_at) FROM states INDEXED BY states_ready
    WHERE status = 'queued' AND due = 1 AND type = c.type AND tenant = c.tenant AND limit_key = '' AND priority = p.value
))
FROM counts AS c CROSS JOIN json_each('[1, 2, 3, 4, 5]') AS p
WHERE c.tenant = (SELECT number FROM tenants WHERE id = ?) AND c.status = 'queued' AND c.jobs > 0
