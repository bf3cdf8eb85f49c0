-- Files of jobs: what they are given, and what they make. None of these is called from outside, but for the last one.

-- As what a tenant has a blob: the content type of a key, an upload or a file that refers to it; nothing when none does.
CREATE OR REPLACE FUNCTION ingot.seen_as(of_tenant uuid, of_blob bytea) RETURNS text
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

-- Hold the blobs that orders name and what their tenants keep, until the transaction ends. Answers the commands that cannot
-- have theirs, or are there already; of one command alone the reason is an error. What others have is not looked at, so that
-- nothing tells of it. Jobs that are waited for are held first: who removes them wants what their tenant keeps. An application
-- (`apart`) holds the blobs alone, for as long as it likes, and keeps nobody else waiting.
CREATE OR REPLACE FUNCTION ingot.hold_files(files json, parents uuid[], apart boolean) RETURNS integer[]
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    asked record;
    refusals text[];
BEGIN
    PERFORM FROM ingot.jobs AS j WHERE j.id = ANY (parents) ORDER BY j.id FOR SHARE;
    IF NOT apart THEN
        PERFORM ingot.lock_usage(ARRAY(SELECT DISTINCT f.tenant FROM json_to_recordset(files) AS f (tenant uuid)));
    END IF;
    PERFORM FROM ingot.blobs AS b WHERE b.digest = ANY (ARRAY(
        SELECT DISTINCT decode(f.blob, 'hex') FROM json_to_recordset(files) AS f (tenant uuid, blob text)
        WHERE ingot.seen_as(f.tenant, decode(f.blob, 'hex')) IS NOT NULL
    )) ORDER BY b.digest FOR KEY SHARE;
    SELECT array_agg(f.command ORDER BY f.place) AS commands, array_agg(f.tenant ORDER BY f.place) AS tenants,
        array_agg(f.owner ORDER BY f.place) AS owners, array_agg(f.quota ORDER BY f.place) AS quotas,
        array_agg(coalesce(b.size, (f.upload ->> 'reserve')::bigint, 0) ORDER BY f.place) AS sizes,
        array_agg(CASE
            WHEN EXISTS (SELECT FROM ingot.jobs AS j WHERE j.id = f.job) THEN 'there'
            WHEN f.upload IS NULL AND b.digest IS NULL THEN 'IN048'
            WHEN EXISTS (
                SELECT FROM ingot.uploads AS u WHERE u.tenant = f.tenant AND u.id = (f.upload ->> 'id')::uuid
            ) THEN 'IN065'
        END ORDER BY f.place) AS refusals
    INTO asked
    FROM ROWS FROM (json_to_recordset(files) AS (
        command integer, job uuid, tenant uuid, owner text, quota bigint, blob text, upload json
    )) WITH ORDINALITY AS f (command, job, tenant, owner, quota, blob, upload, place)
    LEFT JOIN ingot.blobs AS b ON b.digest = decode(f.blob, 'hex') AND ingot.seen_as(f.tenant, decode(f.blob, 'hex')) IS NOT NULL;
    refusals := ingot.misfits(asked.tenants, asked.owners, asked.sizes, asked.sizes, asked.quotas, asked.refusals);
    IF asked.commands[1] = ALL (asked.commands) AND 'there' <> ALL (array_remove(refusals, NULL)) THEN
        PERFORM ingot.expect_none(r) FROM unnest(refusals) AS r;
    END IF;
    RETURN ARRAY(SELECT DISTINCT a.command FROM unnest(asked.commands, refusals) AS a (command, refusal) WHERE a.refusal IS NOT NULL);
END
$$;

-- Give new jobs the files that were held for them, and begin the uploads that they wait for. What told the type of one may be gone
-- since it was held; the blob is not.
CREATE OR REPLACE FUNCTION ingot.add_files(files json, barred integer[], now bigint, apart boolean) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    made record;
BEGIN
    WITH asked AS MATERIALIZED (
        SELECT f.*, b.digest, b.sha256, b.size
        FROM json_to_recordset(files) AS f (
            command integer, job uuid, tenant uuid, owner text, quota bigint, kind text, name text, blob text, upload json
        )
        LEFT JOIN ingot.blobs AS b ON b.digest = decode(f.blob, 'hex')
        WHERE f.command <> ALL (barred) AND EXISTS (SELECT FROM ingot.jobs AS j WHERE j.id = f.job)
    ),
    given AS (
        INSERT INTO ingot.job_files (tenant, job, kind, name, blob, sha256, size, content_type, owner, since)
        SELECT a.tenant, a.job, a.kind, a.name, a.digest, a.sha256, a.size,
            coalesce(ingot.seen_as(a.tenant, a.digest), 'application/octet-stream'), a.owner, now
        FROM asked AS a WHERE a.upload IS NULL
    )
    SELECT array_agg(a.tenant) AS tenants, array_agg(a.owner) AS owners, array_agg(a.quota) AS quotas,
        array_agg(CASE WHEN a.upload IS NULL THEN a.size ELSE 0 END) AS bytes,
        array_agg(coalesce((a.upload ->> 'reserve')::bigint, 0)) AS reserved, array_agg(0::bigint) AS nothing,
        array_agg(a.upload) FILTER (WHERE a.upload IS NOT NULL) AS uploads
    INTO made FROM asked AS a;
    IF apart THEN
        INSERT INTO ingot.usage_owed (tenant, owner, bytes)
        SELECT a.tenant, a.owner, sum(a.bytes) FROM unnest(made.tenants, made.owners, made.bytes) AS a (tenant, owner, bytes)
        GROUP BY a.tenant, a.owner;
        RETURN;
    END IF;
    PERFORM ingot.insert_upload(u, now) FROM unnest(made.uploads) AS u;
    PERFORM ingot.add_usage(
        made.tenants, made.owners, made.bytes, made.reserved, made.nothing, made.nothing, made.quotas
    );
END
$$;

-- Move blocked jobs of these tenants alone, until the transaction ends. Gives us no transaction id.
CREATE OR REPLACE FUNCTION ingot.lock_blocked_of(of_tenants uuid[]) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    one uuid;
BEGIN
    FOR one IN SELECT DISTINCT t FROM unnest(of_tenants) AS t ORDER BY 1 LOOP
        PERFORM pg_advisory_xact_lock(hashtextextended(one::text, 7305));
    END LOOP;
END
$$;

-- Whether a job waits for an upload.
CREATE OR REPLACE FUNCTION ingot.lacks_input(of_job uuid) RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT EXISTS (
        SELECT FROM ingot.uploads AS u
        WHERE u.job = of_job AND u.job IS NOT NULL AND u.fence IS NULL AND u.state IN ('open', 'verifying')
    )
$$;

-- Queue those of these blocked jobs that wait for nothing any more. Answers them as `release` does, as JSON.
-- Who moves blocked jobs is kept out.
CREATE OR REPLACE FUNCTION ingot.queue_blocked(jobs uuid[], now bigint) RETURNS SETOF text
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH gone AS (
        DELETE FROM ingot.blocked AS b WHERE b.id = ANY (jobs) AND NOT ingot.lacks_input(b.id)
            AND NOT EXISTS (SELECT FROM ingot.waits AS w WHERE w.job = b.id AND w.open)
        RETURNING b.*
    ),
    due AS (
        INSERT INTO ingot.ready (
            id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts, fence,
            told_at
        )
        SELECT id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts,
            fence, told_at
        FROM gone WHERE run_at <= now
    ),
    put_off AS (
        INSERT INTO ingot.later (
            id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts, fence,
            told_at
        )
        SELECT id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts,
            fence, told_at
        FROM gone WHERE run_at > now
    ),
    told AS (
        INSERT INTO ingot.events (tenant, position, at, entries)
        SELECT tenant, ingot.position(pg_current_xact_id()), now, '[' || string_agg(
            ingot.news('job.updated', ingot.ids(id), type, 'queued', attempts, failures, crashes, fence, NULL, run_at, NULL,
                NULL, false, NULL, NULL), ',' ORDER BY id) || ']'
        FROM gone GROUP BY tenant
        ON CONFLICT (tenant, position) DO UPDATE SET entries = ingot.then(events.entries, excluded.entries)
    ),
    counted AS (
        INSERT INTO ingot.count_deltas (tenant, type, status, jobs)
        SELECT c.tenant, c.type, s.status, s.sign * c.jobs
        FROM (SELECT tenant, type, count(*) AS jobs FROM gone GROUP BY tenant, type) AS c
        CROSS JOIN (VALUES ('blocked', -1), ('queued', 1)) AS s (status, sign)
    )
    SELECT json_build_object('id', id, 'tenant', tenant, 'type', type, 'limit_key', limit_key, 'batch', batch,
        'status', 'queued', 'priority', priority, 'run_at', run_at, 'ready', run_at <= now)::text FROM gone;
END
$$;

-- Cancel blocked jobs, each for a reason, and end the uploads that they wait for. Answers as `queue_blocked` does. Who moves
-- blocked jobs is kept out, and the tenants are held.
CREATE OR REPLACE FUNCTION ingot.cancel_blocked(jobs uuid[], reasons text[], now bigint) RETURNS SETOF text
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH gone AS (
        DELETE FROM ingot.blocked AS b USING (
            SELECT DISTINCT ON (a.id) a.id, a.reason FROM unnest(jobs, reasons) AS a (id, reason) ORDER BY a.id
        ) AS a
        WHERE b.id = a.id RETURNING b.*, a.reason
    ),
    untied AS (
        UPDATE ingot.waits AS w SET open = false FROM gone AS g WHERE w.job = g.id AND w.open
    ),
    kept AS (
        INSERT INTO ingot.canceled (
            id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts, fence,
            told_at, finished_at, error
        )
        SELECT id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts,
            fence, told_at, now, reason
        FROM gone
    ),
    freed AS (
        DELETE FROM ingot.dedupe_keys AS k USING gone AS g
        WHERE g.dedupe_key IS NOT NULL AND k.tenant = g.tenant AND k.key = g.dedupe_key
    ),
    told AS (
        INSERT INTO ingot.events (tenant, position, at, entries)
        SELECT tenant, ingot.position(pg_current_xact_id()), now, '[' || string_agg(
            ingot.news('job.canceled', ingot.ids(id), type, 'canceled', attempts, failures, crashes, fence, NULL, NULL, NULL,
                reason, false, NULL, NULL), ',' ORDER BY id) || ']'
        FROM gone GROUP BY tenant
        ON CONFLICT (tenant, position) DO UPDATE SET entries = ingot.then(events.entries, excluded.entries)
    ),
    counted AS (
        INSERT INTO ingot.count_deltas (tenant, type, status, jobs)
        SELECT c.tenant, c.type, s.status, s.sign * c.jobs
        FROM (SELECT tenant, type, count(*) AS jobs FROM gone GROUP BY tenant, type) AS c
        CROSS JOIN (VALUES ('blocked', -1), ('canceled', 1)) AS s (status, sign)
    ),
    noted AS (
        INSERT INTO ingot.endings (tenant, type, finished_at, size, jobs)
        SELECT tenant, type, now, count(*), array_agg(id) FROM gone GROUP BY tenant, type
    ),
    batched AS (
        INSERT INTO ingot.batch_deltas (tenant, batch, status, jobs)
        SELECT tenant, batch, 'canceled', count(*) FROM gone WHERE batch IS NOT NULL GROUP BY tenant, batch
    )
    SELECT json_build_object('id', id, 'tenant', tenant, 'type', type, 'limit_key', limit_key, 'batch', batch,
        'status', 'canceled', 'priority', priority, 'run_at', run_at, 'ready', false)::text FROM gone;
    PERFORM ingot.drop_inputs(jobs, now);
END
$$;

-- End the uploads that jobs wait for which are not blocked any more. The tenants are held.
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

-- Take files of jobs away, give back what they took, and leave tombstones. The tenants are held.
CREATE OR REPLACE FUNCTION ingot.drop_files(files ingot.job_files[], now bigint) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    DELETE FROM ingot.job_files AS f USING unnest(files) AS d WHERE f.job = d.job AND f.kind = d.kind AND f.name = d.name;
    INSERT INTO ingot.tombstones (digest, at) SELECT DISTINCT f.blob, now FROM unnest(files) AS f;
    PERFORM ingot.add_usage(
        array_agg(f.tenant), array_agg(f.owner), array_agg(-f.size), array_agg(0::bigint), array_agg(0::bigint),
        array_agg(0::bigint)
    )
    FROM unnest(files) AS f;
END
$$;

-- Make an upload that is done a file of its job: an input, a log or a checkpoint, in place of one with its name. What it takes
-- is counted already. The tenant is held.
CREATE OR REPLACE FUNCTION ingot.file_upload(done ingot.uploads, now bigint) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM ingot.drop_files(array_agg(f), now) FROM ingot.job_files AS f
    WHERE f.job = done.job AND f.kind = done.file AND f.name = done.name HAVING count(*) > 0;
    INSERT INTO ingot.job_files (tenant, job, kind, name, blob, sha256, size, content_type, owner, fence, since)
    VALUES (
        done.tenant, done.job, done.file, done.name, done.blob, done.sha256, done.size, done.content_type, done.owner,
        done.fence, now
    );
    IF done.file = 'input' THEN
        UPDATE ingot.jobs AS j SET inputs = j.inputs || jsonb_build_object(done.name, encode(done.blob, 'hex'))
        WHERE j.id = done.job;
    END IF;
END
$$;

-- Hold what attempts that succeed have made, and what earlier ones of their jobs made or saved; answers the jobs of these, and the
-- places of those that name an output which is not there, with its name.
CREATE OR REPLACE FUNCTION ingot.hold_outputs(
    ids uuid[], fences bigint[], tenants uuid[], outcomes text[], workers text[], all_outputs json[],
    OUT makers uuid[], OUT lacking integer[], OUT lacks text[]
)
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    lacking := '{}';
    lacks := '{}';
    makers := ARRAY(
        SELECT a.id FROM unnest(ids, fences, outcomes, all_outputs) AS a (id, fence, said, outputs)
        JOIN ingot.leases AS l ON l.id = a.id AND l.fence = a.fence
        WHERE coalesce(a.said, 'succeeded') = 'succeeded' AND (
            a.outputs IS NOT NULL
            OR EXISTS (SELECT FROM ingot.uploads AS u WHERE u.job = a.id AND u.fence = a.fence AND u.fence IS NOT NULL)
            OR EXISTS (SELECT FROM ingot.job_files AS f WHERE f.job = a.id AND f.kind IN ('output', 'checkpoint'))
        )
    );
    IF cardinality(makers) = 0 THEN
        RETURN;
    END IF;
    -- All attempts of the call are held before what tenants keep is. None of their uploads is finished after that.
    PERFORM FROM (SELECT * FROM unnest(ids, fences) AS a (id, fence) ORDER BY a.id) AS a CROSS JOIN LATERAL (
        SELECT FROM ingot.leases AS l WHERE l.id = a.id AND l.fence = a.fence FOR UPDATE
    ) AS l;
    PERFORM ingot.lock_usage(ARRAY(SELECT DISTINCT l.tenant FROM ingot.leases AS l WHERE l.id = ANY (makers)));
    SELECT coalesce(array_agg(m.place), '{}'), coalesce(array_agg(m.name), '{}') INTO lacking, lacks FROM (
        SELECT DISTINCT ON (a.place) a.place::integer, n.name
        FROM unnest(ids, fences, tenants, outcomes, workers, all_outputs)
            WITH ORDINALITY AS a (id, fence, tenant, said, worker, outputs, place)
        JOIN ingot.leases AS l ON l.id = a.id AND l.fence = a.fence
        CROSS JOIN LATERAL json_array_elements_text(a.outputs) AS n (name)
        WHERE a.outputs IS NOT NULL AND coalesce(a.said, 'succeeded') = 'succeeded'
            AND (a.tenant IS NULL OR a.tenant = l.tenant) AND ingot.is_of(l.worker_id, a.worker) AND NOT EXISTS (
                SELECT FROM ingot.uploads AS u WHERE u.job = a.id AND u.fence = a.fence AND u.fence IS NOT NULL
                    AND u.file = 'output' AND u.name = n.name AND u.state = 'done'
            )
        ORDER BY a.place
    ) AS m;
END
$$;

-- Make what attempts have made files of their jobs, if they have succeeded, in place of all that an earlier run made; of
-- several with one name the last. What they take is counted already. Checkpoints go. The tenants are held.
CREATE OR REPLACE FUNCTION ingot.file_outputs(ids uuid[], fences bigint[], makers uuid[], now bigint) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    done ingot.outcomes[];
    filed ingot.uploads[];
BEGIN
    SELECT array_agg(o) INTO done FROM unnest(ids, fences) AS a (id, fence)
    JOIN ingot.outcomes AS o ON o.job = a.id AND o.fence = a.fence
    WHERE a.id = ANY (makers) AND o.status_after = 'succeeded';
    PERFORM ingot.drop_files(array_agg(f), now) FROM unnest(done) AS o
    JOIN ingot.job_files AS f ON f.job = o.job AND f.kind IN ('output', 'checkpoint') HAVING count(*) > 0;
    WITH last AS MATERIALIZED (
        SELECT DISTINCT ON (u.job, u.name) u.tenant, u.id FROM unnest(done) AS o
        JOIN ingot.uploads AS u ON u.job = o.job AND u.fence = o.fence AND u.fence IS NOT NULL
        WHERE u.file = 'output' AND u.state = 'done' ORDER BY u.job, u.name, u.done_at DESC, u.id DESC
    ),
    gone AS (
        DELETE FROM ingot.uploads AS u USING last AS l WHERE u.tenant = l.tenant AND u.id = l.id RETURNING u
    )
    SELECT array_agg(g.u) INTO filed FROM gone AS g;
    IF filed IS NULL THEN
        RETURN;
    END IF;
    INSERT INTO ingot.job_files (tenant, job, kind, name, blob, sha256, size, content_type, owner, fence, since)
    SELECT u.tenant, u.job, 'output', u.name, u.blob, u.sha256, u.size, u.content_type, u.owner, u.fence, now
    FROM unnest(filed) AS u;
    PERFORM ingot.tell_of_blobs(
        array_agg(u.tenant), array_agg('blob.stored'::text),
        array_agg(ingot.blob_news(u.blob, u.size, NULL, u.content_type, u.job, u.name))
    )
    FROM (SELECT u.* FROM unnest(filed) AS u ORDER BY u.job, u.name COLLATE "C") AS u;
END
$$;

-- Where a job stands, and a file of it with its content, if it has that.
CREATE OR REPLACE FUNCTION ingot.open_file(of_job uuid, of_kind text, of_name text)
RETURNS TABLE (
    tenant text, type text, status text, held_fence bigint, holder text, attempts integer, content_type text, since bigint,
    digest bytea, sha256 bytea, size bigint, place text, damaged boolean, inline bytea, checks bytea
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
        b.digest, b.sha256, b.size, b.place, b.damaged, c.inline, c.checks
    FROM ingot.job_rows AS s
    LEFT JOIN ingot.job_files AS f ON f.job = s.id AND f.kind = of_kind AND f.name = of_name
    LEFT JOIN ingot.blobs AS b ON b.digest = f.blob
    LEFT JOIN ingot.blob_contents AS c ON c.digest = f.blob
    WHERE s.id = of_job
$$;
