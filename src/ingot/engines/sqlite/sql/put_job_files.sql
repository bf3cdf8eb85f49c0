-- The row of VALUES is repeated.
INSERT INTO job_files (tenant, job, kind, name, blob, content_type, owner, fence, since)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (job, kind, name) DO UPDATE SET
    blob = excluded.blob, content_type = excluded.content_type, owner = excluded.owner, fence = excluded.fence,
    since = excluded.since
