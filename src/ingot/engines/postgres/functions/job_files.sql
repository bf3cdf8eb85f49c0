-- Input and output files of jobs. Only `open_file` is called from outside.

-- The content type of a key, upload or job file through which a tenant can read a blob; NULL if there is none.
CREATE OR REPLACE FUNCTION ingot.visible_content_type(of_tenant uuid, of_blob bytea) RETURNS text
LANGUAGE sql STABLE
AS $$
    SELECT coalesce(
        (SELECT k.content_type FROM ingot.keys AS k WHERE k.blob = of_blob AND k.tenant = of_tenant LIMIT 1),
        (
            SELECT u.content_type FROM ingot.uploads AS u
            WHERE u.blob = of_blob AND u.tenant = of_tenant AND u.blob IS NOT NULL AND u.refers AND u.state = 'done'
                AND u.job IS NULL LIMIT 1
        ),
        (SELECT f.content_type FROM ingot.job_files AS f WHERE f.blob = of_blob AND f.tenant = of_tenant LIMIT 1)
    )
$$;

-- Lock the blobs that orders name and the usage of their tenants until the transaction ends. Returns the commands whose
-- files are missing or exceed a quota, or whose jobs exist already; for a single command the reason is raised. Blobs of
-- other tenants count as missing, so that nothing reveals them. Parents are locked first, because retention locks jobs
-- before the usage of their tenant. A transaction of an application (`from_app`) may stay open for long, so it locks only
-- the blobs.
CREATE OR REPLACE FUNCTION ingot.lock_order_files(files json, parents uuid[], from_app boolean) RETURNS integer[]
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    requested record;
    refusals text[];
BEGIN
    PERFORM FROM ingot.jobs AS j WHERE j.id = ANY (parents) ORDER BY j.id FOR SHARE;
    IF NOT from_app THEN
        PERFORM ingot.lock_usage(ARRAY(SELECT DISTINCT f.tenant FROM json_to_recordset(files) AS f (tenant uuid)));
    END IF;
    PERFORM FROM (
        SELECT DISTINCT f.tenant, decode(f.blob, 'hex') AS digest FROM json_to_recordset(files) AS f (tenant uuid, blob text)
        WHERE ingot.visible_content_type(f.tenant, decode(f.blob, 'hex')) IS NOT NULL
    ) AS f
    JOIN ingot.blobs AS b ON b.holder = f.tenant AND b.digest = f.digest ORDER BY b.holder, b.digest FOR KEY SHARE OF b;
    SELECT array_agg(f.command ORDER BY f.place) AS commands, array_agg(f.tenant ORDER BY f.place) AS tenants,
        array_agg(f.owner ORDER BY f.place) AS owners, array_agg(f.quota ORDER BY f.place) AS quotas,
        array_agg(coalesce(b.size, (f.upload ->> 'reserve')::bigint, 0) ORDER BY f.place) AS sizes,
        array_agg(CASE
            WHEN EXISTS (SELECT FROM ingot.jobs AS j WHERE j.id = f.job) THEN 'job exists'
            WHEN f.upload IS NULL AND b.digest IS NULL THEN 'IN048'
            WHEN EXISTS (
                SELECT FROM ingot.uploads AS u WHERE u.tenant = f.tenant AND u.id = (f.upload ->> 'id')::uuid
            ) THEN 'IN065'
        END ORDER BY f.place) AS refusals
    INTO requested
    FROM ROWS FROM (json_to_recordset(files) AS (
        command integer, job uuid, tenant uuid, owner text, quota bigint, blob text, upload json
    )) WITH ORDINALITY AS f (command, job, tenant, owner, quota, blob, upload, place)
    LEFT JOIN ingot.blobs AS b ON b.holder = f.tenant AND b.digest = decode(f.blob, 'hex')
        AND ingot.visible_content_type(f.tenant, decode(f.blob, 'hex')) IS NOT NULL;
    refusals := ingot.quota_refusals(requested.tenants, requested.owners, requested.sizes, requested.sizes,
        requested.quotas, requested.refusals);
    IF requested.commands[1] = ALL (requested.commands) AND 'job exists' <> ALL (array_remove(refusals, NULL)) THEN
        PERFORM ingot.raise_refusal(r) FROM unnest(refusals) AS r;
    END IF;
    RETURN ARRAY(
        SELECT DISTINCT a.command FROM unnest(requested.commands, refusals) AS a (command, refusal) WHERE a.refusal IS NOT NULL
    );
END
$$;

-- Add the locked files to new jobs, and begin the uploads that they wait for. The reference that had the content type may
-- have been deleted since the lock; the blob has not.
CREATE OR REPLACE FUNCTION ingot.add_order_files(files json, refused_commands integer[], now bigint, from_app boolean)
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    totals record;
BEGIN
    WITH accepted_files AS MATERIALIZED (
        SELECT f.*, b.digest, b.sha256, b.size
        FROM json_to_recordset(files) AS f (
            command integer, job uuid, tenant uuid, owner text, quota bigint, kind text, name text, blob text, upload json
        )
        LEFT JOIN ingot.blobs AS b ON b.holder = f.tenant AND b.digest = decode(f.blob, 'hex')
        WHERE f.command <> ALL (refused_commands) AND EXISTS (SELECT FROM ingot.jobs AS j WHERE j.id = f.job)
    ),
    added_files AS (
        INSERT INTO ingot.job_files (tenant, job, kind, name, blob, sha256, size, content_type, owner, since)
        SELECT a.tenant, a.job, a.kind, a.name, a.digest, a.sha256, a.size,
            coalesce(ingot.visible_content_type(a.tenant, a.digest), 'application/octet-stream'), a.owner, now
        FROM accepted_files AS a WHERE a.upload IS NULL
    )
    SELECT array_agg(a.tenant) AS tenants, array_agg(a.owner) AS owners, array_agg(a.quota) AS quotas,
        array_agg(CASE WHEN a.upload IS NULL THEN a.size ELSE 0 END) AS bytes,
        array_agg(coalesce((a.upload ->> 'reserve')::bigint, 0)) AS reserved, array_agg(0::bigint) AS zeros,
        array_agg(a.upload) FILTER (WHERE a.upload IS NOT NULL) AS uploads
    INTO totals FROM accepted_files AS a;
    IF from_app THEN
        INSERT INTO ingot.usage_owed (tenant, owner, bytes)
        SELECT a.tenant, a.owner, sum(a.bytes)
        FROM unnest(totals.tenants, totals.owners, totals.bytes) AS a (tenant, owner, bytes)
        GROUP BY a.tenant, a.owner;
        RETURN;
    END IF;
    PERFORM ingot.insert_upload(u, now) FROM unnest(totals.uploads) AS u;
    PERFORM ingot.add_usage(
        totals.tenants, totals.owners, totals.bytes, totals.reserved, totals.zeros, totals.zeros, totals.quotas
    );
END
$$;

-- Serialize moving blocked jobs of these tenants until the transaction ends. The lock does not assign a transaction ID.
CREATE OR REPLACE FUNCTION ingot.lock_blocked_jobs(of_tenants uuid[]) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    tenant_id uuid;
BEGIN
    FOR tenant_id IN SELECT DISTINCT t FROM unnest(of_tenants) AS t ORDER BY 1 LOOP
        PERFORM pg_advisory_xact_lock(hashtextextended(tenant_id::text, 7305));
    END LOOP;
END
$$;

-- Whether a job waits for an upload.
CREATE OR REPLACE FUNCTION ingot.waits_for_upload(of_job uuid) RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT EXISTS (
        SELECT FROM ingot.uploads AS u
        WHERE u.job = of_job AND u.job IS NOT NULL AND u.fence IS NULL AND u.state IN ('open', 'verifying')
    )
$$;

-- Queue those of these blocked jobs that wait for nothing any more. Returns the rows of `release_dependents`, as JSON.
-- The caller holds `lock_blocked_jobs`.
CREATE OR REPLACE FUNCTION ingot.queue_blocked(jobs uuid[], now bigint) RETURNS SETOF text
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH unblocked AS (
        DELETE FROM ingot.blocked AS b WHERE b.id = ANY (jobs) AND NOT ingot.waits_for_upload(b.id)
            AND NOT EXISTS (SELECT FROM ingot.waits AS w WHERE w.job = b.id AND w.open)
        RETURNING b.*
    ),
    added_ready AS (
        INSERT INTO ingot.ready (
            id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts, fence,
            told_at
        )
        SELECT id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts,
            fence, told_at
        FROM unblocked WHERE run_at <= now
    ),
    added_later AS (
        INSERT INTO ingot.later (
            id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts, fence,
            told_at
        )
        SELECT id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts,
            fence, told_at
        FROM unblocked WHERE run_at > now
    ),
    added_events AS (
        INSERT INTO ingot.events (tenant, position, at, entries)
        SELECT tenant, ingot.event_position(pg_current_xact_id()), now, '[' || string_agg(
            ingot.job_event_entry('job.updated', ingot.quoted_id(id), type, 'queued', attempts, failures, crashes, fence,
                NULL, run_at, NULL, NULL, false, NULL, NULL), ',' ORDER BY id) || ']'
        FROM unblocked GROUP BY tenant
        ON CONFLICT (tenant, position) DO UPDATE SET entries = ingot.join_entries(events.entries, excluded.entries)
    ),
    added_counts AS (
        INSERT INTO ingot.count_deltas (tenant, type, status, jobs)
        SELECT c.tenant, c.type, s.status, s.sign * c.jobs
        FROM (SELECT tenant, type, count(*) AS jobs FROM unblocked GROUP BY tenant, type) AS c
        CROSS JOIN (VALUES ('blocked', -1), ('queued', 1)) AS s (status, sign)
    )
    SELECT json_build_object('id', id, 'tenant', tenant, 'type', type, 'limit_key', limit_key, 'batch', batch,
        'status', 'queued', 'priority', priority, 'run_at', run_at, 'ready', run_at <= now)::text FROM unblocked;
END
$$;

-- Cancel blocked jobs, each for a reason, and end the uploads that they wait for. Returns rows like `queue_blocked`. The
-- caller holds `lock_blocked_jobs` and `lock_usage`.
CREATE OR REPLACE FUNCTION ingot.cancel_blocked(jobs uuid[], reasons text[], now bigint) RETURNS SETOF text
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH unblocked AS (
        DELETE FROM ingot.blocked AS b USING (
            SELECT DISTINCT ON (a.id) a.id, a.reason FROM unnest(jobs, reasons) AS a (id, reason) ORDER BY a.id
        ) AS a
        WHERE b.id = a.id RETURNING b.*, a.reason
    ),
    closed_waits AS (
        UPDATE ingot.waits AS w SET open = false FROM unblocked AS g WHERE w.job = g.id AND w.open
    ),
    added_canceled AS (
        INSERT INTO ingot.canceled (
            id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts, fence,
            told_at, finished_at, error
        )
        SELECT id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts,
            fence, told_at, now, reason
        FROM unblocked
    ),
    deleted_dedupe_keys AS (
        DELETE FROM ingot.dedupe_keys AS k USING unblocked AS g
        WHERE g.dedupe_key IS NOT NULL AND k.tenant = g.tenant AND k.key = g.dedupe_key
    ),
    added_events AS (
        INSERT INTO ingot.events (tenant, position, at, entries)
        SELECT tenant, ingot.event_position(pg_current_xact_id()), now, '[' || string_agg(
            ingot.job_event_entry('job.canceled', ingot.quoted_id(id), type, 'canceled', attempts, failures, crashes,
                fence, NULL, NULL, NULL, reason, false, NULL, NULL), ',' ORDER BY id) || ']'
        FROM unblocked GROUP BY tenant
        ON CONFLICT (tenant, position) DO UPDATE SET entries = ingot.join_entries(events.entries, excluded.entries)
    ),
    added_counts AS (
        INSERT INTO ingot.count_deltas (tenant, type, status, jobs)
        SELECT c.tenant, c.type, s.status, s.sign * c.jobs
        FROM (SELECT tenant, type, count(*) AS jobs FROM unblocked GROUP BY tenant, type) AS c
        CROSS JOIN (VALUES ('blocked', -1), ('canceled', 1)) AS s (status, sign)
    ),
    added_endings AS (
        INSERT INTO ingot.endings (tenant, type, finished_at, size, jobs)
        SELECT tenant, type, now, count(*), array_agg(id) FROM unblocked GROUP BY tenant, type
    ),
    added_batch_deltas AS (
        INSERT INTO ingot.batch_deltas (tenant, batch, status, jobs)
        SELECT tenant, batch, 'canceled', count(*) FROM unblocked WHERE batch IS NOT NULL GROUP BY tenant, batch
    )
    SELECT json_build_object('id', id, 'tenant', tenant, 'type', type, 'limit_key', limit_key, 'batch', batch,
        'status', 'canceled', 'priority', priority, 'run_at', run_at, 'ready', false)::text FROM unblocked;
    PERFORM ingot.drop_inputs(jobs, now);
END
$$;

-- End the uploads of inputs of jobs that are no longer blocked. The caller holds `lock_usage`.
CREATE OR REPLACE FUNCTION ingot.drop_inputs(jobs uuid[], now bigint) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    of_tenants uuid[];
    ids uuid[];
BEGIN
    SELECT array_agg(u.tenant), array_agg(u.id) INTO of_tenants, ids FROM (
        SELECT u.tenant, u.id FROM ingot.uploads AS u
        WHERE u.job = ANY (jobs) AND u.job IS NOT NULL AND u.fence IS NULL AND u.state IN ('open', 'verifying')
            AND NOT EXISTS (SELECT FROM ingot.blocked AS b WHERE b.id = u.job)
        ORDER BY u.tenant, u.id FOR UPDATE
    ) AS u;
    IF ids IS NOT NULL THEN
        PERFORM ingot.drop_uploads(of_tenants, ids, now);
    END IF;
END
$$;

-- Delete files of jobs, subtract their usage, and add tombstones. The caller holds `lock_usage`.
CREATE OR REPLACE FUNCTION ingot.drop_files(files ingot.job_files[], now bigint) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    DELETE FROM ingot.job_files AS f USING unnest(files) AS d WHERE f.job = d.job AND f.kind = d.kind AND f.name = d.name;
    PERFORM ingot.bury(array_agg(f.tenant), array_agg(f.blob), array_agg(f.owner), now) FROM unnest(files) AS f;
    PERFORM ingot.add_usage(
        array_agg(f.tenant), array_agg(f.owner), array_agg(-f.size), array_agg(0::bigint), array_agg(0::bigint),
        array_agg(0::bigint)
    )
    FROM unnest(files) AS f;
END
$$;

-- Make a finished upload a file of its job: an input, a log or a checkpoint. It replaces a file with the same name. Its
-- usage is counted already. The caller holds `lock_usage`.
CREATE OR REPLACE FUNCTION ingot.store_upload_as_file(upload ingot.uploads, now bigint) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM ingot.drop_files(array_agg(f), now) FROM ingot.job_files AS f
    WHERE f.job = upload.job AND f.kind = upload.file AND f.name = upload.name HAVING count(*) > 0;
    INSERT INTO ingot.job_files (tenant, job, kind, name, blob, sha256, size, content_type, owner, fence, since)
    VALUES (
        upload.tenant, upload.job, upload.file, upload.name, upload.blob, upload.sha256, upload.size, upload.content_type,
        upload.owner, upload.fence, now
    );
    PERFORM ingot.unbury(ARRAY[upload.tenant], ARRAY[upload.blob]);
    IF upload.file = 'input' THEN
        UPDATE ingot.jobs AS j SET inputs = j.inputs || jsonb_build_object(upload.name, encode(upload.blob, 'hex'))
        WHERE j.id = upload.job;
    END IF;
END
$$;

-- Lock the succeeding attempts of jobs that have outputs or checkpoints, new ones or those of earlier attempts, and the usage
-- of their tenants. Returns these jobs, and the places of attempts that name an output that was not uploaded, with its name.
CREATE OR REPLACE FUNCTION ingot.lock_outputs(
    ids uuid[], fences bigint[], tenants uuid[], outcomes text[], workers text[], all_outputs json[],
    OUT producing_jobs uuid[], OUT missing_places integer[], OUT missing_names text[]
)
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    missing_places := '{}';
    missing_names := '{}';
    producing_jobs := ARRAY(
        SELECT a.id FROM unnest(ids, fences, outcomes, all_outputs) AS a (id, fence, outcome, outputs)
        JOIN ingot.leases AS l ON l.id = a.id AND l.fence = a.fence
        WHERE coalesce(a.outcome, 'succeeded') = 'succeeded' AND (
            a.outputs IS NOT NULL
            OR EXISTS (SELECT FROM ingot.uploads AS u WHERE u.job = a.id AND u.fence = a.fence AND u.fence IS NOT NULL)
            OR EXISTS (SELECT FROM ingot.job_files AS f WHERE f.job = a.id AND f.kind IN ('output', 'checkpoint'))
        )
    );
    IF cardinality(producing_jobs) = 0 THEN
        RETURN;
    END IF;
    -- All attempts of the call are locked before the usage. No upload of theirs can finish after that.
    PERFORM FROM (SELECT * FROM unnest(ids, fences) AS a (id, fence) ORDER BY a.id) AS a CROSS JOIN LATERAL (
        SELECT FROM ingot.leases AS l WHERE l.id = a.id AND l.fence = a.fence FOR UPDATE
    ) AS l;
    PERFORM ingot.lock_usage(ARRAY(SELECT DISTINCT l.tenant FROM ingot.leases AS l WHERE l.id = ANY (producing_jobs)));
    SELECT coalesce(array_agg(m.place), '{}'), coalesce(array_agg(m.name), '{}') INTO missing_places, missing_names FROM (
        SELECT DISTINCT ON (a.place) a.place::integer, n.name
        FROM unnest(ids, fences, tenants, outcomes, workers, all_outputs)
            WITH ORDINALITY AS a (id, fence, tenant, outcome, worker, outputs, place)
        JOIN ingot.leases AS l ON l.id = a.id AND l.fence = a.fence
        CROSS JOIN LATERAL json_array_elements_text(a.outputs) AS n (name)
        WHERE a.outputs IS NOT NULL AND coalesce(a.outcome, 'succeeded') = 'succeeded'
            AND (a.tenant IS NULL OR a.tenant = l.tenant) AND ingot.matches_worker(l.worker_id, a.worker) AND NOT EXISTS (
                SELECT FROM ingot.uploads AS u WHERE u.job = a.id AND u.fence = a.fence AND u.fence IS NOT NULL
                    AND u.file = 'output' AND u.name = n.name AND u.state = 'done'
            )
        ORDER BY a.place
    ) AS m;
END
$$;

-- Store the outputs of attempts that succeeded as files of their jobs. They replace the outputs of an earlier run; of
-- several uploads with one name the last counts. Their usage is counted already. Checkpoints are deleted. The caller holds
-- `lock_usage`.
CREATE OR REPLACE FUNCTION ingot.store_outputs(ids uuid[], fences bigint[], producing_jobs uuid[], now bigint) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    succeeded ingot.outcomes[];
    stored_uploads ingot.uploads[];
BEGIN
    SELECT array_agg(o) INTO succeeded FROM unnest(ids, fences) AS a (id, fence)
    JOIN ingot.outcomes AS o ON o.job = a.id AND o.fence = a.fence
    WHERE a.id = ANY (producing_jobs) AND o.status_after = 'succeeded';
    PERFORM ingot.drop_files(array_agg(f), now) FROM unnest(succeeded) AS o
    JOIN ingot.job_files AS f ON f.job = o.job AND f.kind IN ('output', 'checkpoint') HAVING count(*) > 0;
    WITH latest_outputs AS MATERIALIZED (
        SELECT DISTINCT ON (u.job, u.name) u.tenant, u.id FROM unnest(succeeded) AS o
        JOIN ingot.uploads AS u ON u.job = o.job AND u.fence = o.fence AND u.fence IS NOT NULL
        WHERE u.file = 'output' AND u.state = 'done' ORDER BY u.job, u.name, u.done_at DESC, u.id DESC
    ),
    deleted_uploads AS (
        DELETE FROM ingot.uploads AS u USING latest_outputs AS l WHERE u.tenant = l.tenant AND u.id = l.id RETURNING u
    )
    SELECT array_agg(g.u) INTO stored_uploads FROM deleted_uploads AS g;
    IF stored_uploads IS NULL THEN
        RETURN;
    END IF;
    INSERT INTO ingot.job_files (tenant, job, kind, name, blob, sha256, size, content_type, owner, fence, since)
    SELECT u.tenant, u.job, 'output', u.name, u.blob, u.sha256, u.size, u.content_type, u.owner, u.fence, now
    FROM unnest(stored_uploads) AS u;
    PERFORM ingot.append_blob_events(
        array_agg(u.tenant), array_agg('blob.stored'::text),
        array_agg(ingot.blob_event_data(u.blob, u.size, NULL, u.content_type, u.job, u.name))
    )
    FROM (SELECT u.* FROM unnest(stored_uploads) AS u ORDER BY u.job, u.name COLLATE "C") AS u;
END
$$;

-- The state of a job, and one of its files with its content, if it exists.
CREATE OR REPLACE FUNCTION ingot.open_file(of_job uuid, of_kind text, of_name text)
RETURNS TABLE (
    tenant text, type text, status text, held_fence bigint, holder text, attempts integer, content_type text, since bigint,
    digest bytea, sha256 bytea, size bigint, place text, damaged boolean, inline bytea, checks bytea, blob_holder text, etag text
)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
    SELECT s.tenant::text, s.type, s.status, s.fence, s.worker_id, s.attempts, f.content_type, f.since,
        b.digest, b.sha256, b.size, b.place, b.damaged, c.inline, c.checks, b.holder::text, b.etag
    FROM ingot.job_rows AS s
    LEFT JOIN ingot.job_files AS f ON f.job = s.id AND f.kind = of_kind AND f.name = of_name
    LEFT JOIN ingot.blobs AS b ON b.holder = f.tenant AND b.digest = f.blob
    LEFT JOIN ingot.blob_contents AS c ON c.holder = f.tenant AND c.digest = f.blob
    WHERE s.id = of_job
$$;
