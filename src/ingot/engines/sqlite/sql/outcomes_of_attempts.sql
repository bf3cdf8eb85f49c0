-- How these attempts (a JSON array of pairs of job number and fence) were settled before.
SELECT CAST('[' || coalesce(group_concat('[' || o.job
    || ',' || o.fence || ',' || json_quote(o.outcome) || ',' || iif(o.retry, 'true', 'false')
    || ',' || json_quote(o.status_after) || ',' || json_quote(o.run_at) || ',' || o.attempts || ',' || o.finished_at
    || ',' || json_quote(o.exit_code) || ',' || json_quote(o.error)
    || ',' || coalesce(CAST(o.result AS TEXT), 'null') || ',' || json_quote(a.worker_id) || ']'), '') || ']' AS BLOB)
FROM json_each(?) AS w CROSS JOIN outcomes AS o
    ON o.job = w.value ->> 0 AND o.fence = w.value ->> 1
CROSS JOIN attempts AS a ON a.job = o.job AND a.fence = o.fence
