-- The bodies of new jobs. The row of VALUES is repeated for each.
INSERT INTO jobs (
    number, payload, metadata, created_at, source, source_ref, created_by, correlation_id, trace_id, idempotency_key,
    inputs, payload_blob, reuse_key, depth
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
