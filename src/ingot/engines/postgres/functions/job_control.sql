-- Refuse a call: the SQLSTATE `code` stands for one of our errors, and the message describes it.
CREATE OR REPLACE FUNCTION ingot.refuse(code text, message text, detail text DEFAULT '') RETURNS boolean
LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION '%', message USING ERRCODE = code, DETAIL = detail;
END
$$;

-- Cancel a waiting job, or ask a running one to stop, on behalf of a caller. Returns the number of jobs changed.
CREATE OR REPLACE FUNCTION ingot.cancel(of_tenant uuid, of_job uuid, caller text DEFAULT NULL) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
DECLARE
    now bigint := ingot.clock();
    jobs_changed integer;
    current_status text;
    requested boolean;
    waits_for_uploads boolean;
BEGIN
    PERFORM ingot.lock_if_blocked(of_tenant, of_job);
    waits_for_uploads := ingot.waits_for_upload(of_job)
        AND EXISTS (SELECT FROM ingot.jobs AS j WHERE j.id = of_job AND j.tenant = of_tenant);
    IF waits_for_uploads THEN
        PERFORM ingot.lock_usage(ARRAY[of_tenant]);
    END IF;
    WITH ready AS (
        DELETE FROM ingot.ready AS r WHERE r.id = of_job AND r.tenant = of_tenant RETURNING r.*
    ),
    later AS (
        DELETE FROM ingot.later AS w WHERE w.id = of_job AND w.tenant = of_tenant RETURNING w.*
    ),
    blocked AS (
        DELETE FROM ingot.blocked AS b WHERE b.id = of_job AND b.tenant = of_tenant RETURNING b.*
    ),
    waiting AS MATERIALIZED (
        SELECT *, 'queued' AS previous_status FROM ready UNION ALL SELECT *, 'queued' FROM later
        UNION ALL SELECT *, 'blocked' FROM blocked
    ),
    closed_waits AS (
        UPDATE ingot.waits AS w SET open = false FROM blocked AS b WHERE w.job = b.id AND w.open
    ),
    added_batch_deltas AS (
        INSERT INTO ingot.batch_deltas (tenant, batch, status, jobs)
        SELECT tenant, batch, 'canceled', 1 FROM waiting WHERE batch IS NOT NULL
    ),
    added_canceled AS (
        INSERT INTO ingot.canceled (
            id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts, fence,
            told_at, finished_at
        )
        SELECT id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts,
            fence, told_at, now
        FROM waiting
    ),
    added_endings AS (
        INSERT INTO ingot.endings (tenant, type, finished_at, size, jobs) SELECT tenant, type, now, 1, ARRAY[id] FROM waiting
    ),
    deleted_dedupe_keys AS (
        DELETE FROM ingot.dedupe_keys AS k USING waiting AS w
        WHERE w.dedupe_key IS NOT NULL AND k.tenant = w.tenant AND k.key = w.dedupe_key
    ),
    locked_lease AS MATERIALIZED (
        SELECT l.changed_by FROM ingot.leases AS l
        WHERE l.id = of_job AND l.tenant = of_tenant AND NOT l.cancel_requested
        FOR UPDATE
    ),
    checked AS MATERIALIZED (
        SELECT CASE WHEN h.changed_by > pg_current_xact_id() THEN ingot.retry_transaction() END FROM locked_lease AS h
    ),
    marked_lease AS (
        UPDATE ingot.leases AS l SET cancel_requested = true, changed_by = pg_current_xact_id()
        FROM checked WHERE l.id = of_job
        RETURNING l.*
    ),
    added_events AS (
        INSERT INTO ingot.events (tenant, position, at, entries)
        SELECT tenant, ingot.event_position(pg_current_xact_id()), now,
            '[' || ingot.job_event_entry('job.canceled', ingot.quoted_id(id), type, 'canceled', attempts,
            failures, crashes, fence, NULL, NULL, NULL, NULL, false, NULL, NULL) || ']'
        FROM waiting
        UNION ALL
        SELECT tenant, ingot.event_position(pg_current_xact_id()), now,
            '[' || ingot.job_event_entry('job.updated', ingot.quoted_id(id), type, 'running', attempts,
            failures, crashes, fence, worker_id, NULL, NULL, NULL, true, percent, stage) || ']'
        FROM marked_lease
    ),
    added_counts AS (
        INSERT INTO ingot.count_deltas (tenant, type, status, jobs)
        SELECT w.tenant, w.type, s.status, s.jobs
        FROM waiting AS w CROSS JOIN LATERAL (VALUES (w.previous_status, -1), ('canceled', 1)) AS s (status, jobs)
    )
    SELECT (SELECT count(*) FROM waiting) + (SELECT count(*) FROM marked_lease) INTO jobs_changed;
    IF jobs_changed = 0 THEN
        SELECT s.status, s.cancel_requested INTO current_status, requested
        FROM ingot.job_rows AS s WHERE s.id = of_job AND s.tenant = of_tenant;
        IF current_status IS NULL THEN
            PERFORM ingot.refuse('IN001', 'there is no such job');
        ELSIF current_status IN ('succeeded', 'dead') THEN
            PERFORM ingot.refuse('IN002', format('the job is %s', current_status));
        ELSIF current_status IN ('blocked', 'queued') OR (current_status = 'running' AND NOT requested) THEN
            PERFORM ingot.retry_transaction();  -- Another transaction moved the job meanwhile.
        END IF;
    ELSE
        UPDATE ingot.jobs AS j SET canceled_by = caller
        WHERE j.id = of_job AND j.tenant = of_tenant AND j.canceled_by IS DISTINCT FROM caller;
    END IF;
    IF waits_for_uploads THEN
        PERFORM ingot.drop_inputs(ARRAY[of_job], now);
    END IF;
    RETURN jobs_changed;
END
$$;

-- Queue a finished job again.
CREATE OR REPLACE FUNCTION ingot.retry(
    of_tenant uuid, of_job uuid, reset_attempts boolean, new_priority integer, new_max_attempts integer, new_run_at bigint
) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
DECLARE
    now bigint;
    current_status text;
    holder uuid;
BEGIN
    -- Two retries of one job must not both find it finished. Unlike a row lock, this lock assigns no transaction ID before
    -- the statement below takes its snapshot.
    PERFORM pg_advisory_xact_lock(hashtextextended(of_job::text, 7303));
    PERFORM ingot.lock_capped_tenants(ARRAY[of_tenant]);
    now := ingot.clock();
    SELECT s.status INTO current_status FROM ingot.job_rows AS s WHERE s.id = of_job AND s.tenant = of_tenant;
    IF current_status IS NULL OR NOT EXISTS (SELECT FROM ingot.tenants AS t WHERE t.id = of_tenant) THEN
        PERFORM ingot.refuse('IN001', 'there is no such job');
    ELSIF current_status NOT IN ('succeeded', 'dead', 'canceled') THEN
        PERFORM ingot.refuse('IN003', format('the job is %s', current_status));
    END IF;
    PERFORM ingot.refuse('IN069', format('the input %s of the job was not uploaded', i.key))
    FROM ingot.jobs AS j CROSS JOIN LATERAL jsonb_each(j.inputs) AS i WHERE j.id = of_job AND jsonb_typeof(i.value) = 'null';
    SELECT k.job INTO holder FROM ingot.jobs AS j
    JOIN ingot.dedupe_keys AS k ON k.tenant = j.tenant AND k.key = j.dedupe_key
    WHERE j.id = of_job AND j.dedupe_key IS NOT NULL;
    IF holder IS NOT NULL THEN
        PERFORM ingot.refuse('IN005', format('the unfinished job %s has the dedupe key of this job', holder), holder::text);
    END IF;
    PERFORM ingot.expect_capacity(ARRAY[of_tenant]);
    -- The lock on the body keeps retention from removing the job. If retention was first, there is no row.
    WITH locked_body AS MATERIALIZED (
        SELECT FROM ingot.jobs AS j WHERE j.id = of_job AND j.tenant = of_tenant FOR SHARE
    ),
    retried_job AS MATERIALIZED (
        SELECT s.*, CASE WHEN reset_attempts THEN 0 ELSE s.failures END AS final_failures,
            CASE WHEN reset_attempts THEN 0 ELSE s.crashes END AS final_crashes,
            coalesce(new_priority, s.priority)::smallint AS final_priority,
            coalesce(new_max_attempts, s.max_attempts) AS final_max_attempts,
            greatest(now, new_run_at) AS due_at
        FROM ingot.job_rows AS s WHERE s.id = of_job AND s.tenant = of_tenant AND EXISTS (SELECT FROM locked_body)
    ),
    deleted_canceled AS (
        DELETE FROM ingot.canceled AS c USING retried_job AS a WHERE c.id = a.id
    ),
    added_dedupe_keys AS (
        INSERT INTO ingot.dedupe_keys (tenant, key, job)
        SELECT tenant, dedupe_key, id FROM retried_job WHERE dedupe_key IS NOT NULL
    ),
    updated_buckets AS (
        INSERT INTO ingot.buckets AS b (tenant, jobs, at)
        SELECT c.tenant, c.rate_left - 1, now FROM retried_job AS a
        CROSS JOIN LATERAL ingot.remaining_caps(ARRAY[a.tenant], now) AS c WHERE c.rate_left IS NOT NULL
        ON CONFLICT (tenant) DO UPDATE SET jobs = excluded.jobs, at = excluded.at
    ),
    added_ready AS (
        INSERT INTO ingot.ready (
            id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts, fence,
            told_at
        )
        SELECT id, tenant, type, limit_key, batch, dedupe_key, final_priority, due_at, attempts, final_failures, final_crashes,
            final_max_attempts, fence, told_at
        FROM retried_job WHERE due_at <= now
    ),
    added_later AS (
        INSERT INTO ingot.later (
            id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts, fence,
            told_at
        )
        SELECT id, tenant, type, limit_key, batch, dedupe_key, final_priority, due_at, attempts, final_failures, final_crashes,
            final_max_attempts, fence, told_at
        FROM retried_job WHERE due_at > now
    ),
    added_events AS (
        INSERT INTO ingot.events (tenant, position, at, entries)
        SELECT tenant, ingot.event_position(pg_current_xact_id()), now,
            '[' || ingot.job_event_entry('job.retried', ingot.quoted_id(id), type, 'queued', attempts,
            final_failures, final_crashes, fence, NULL, due_at, NULL, NULL, false, NULL, NULL) || ']'
        FROM retried_job
    ),
    added_batch_deltas AS (
        INSERT INTO ingot.batch_deltas (tenant, batch, status, jobs)
        SELECT tenant, batch, status, -1 FROM retried_job WHERE batch IS NOT NULL
    ),
    reopened_batches AS (
        UPDATE ingot.batches AS b SET told = 0 FROM retried_job AS a WHERE b.tenant = a.tenant AND b.batch = a.batch
    )
    INSERT INTO ingot.count_deltas (tenant, type, status, jobs)
    SELECT a.tenant, a.type, s.status, s.jobs
    FROM retried_job AS a CROSS JOIN LATERAL (VALUES (a.status, -1), ('queued', 1)) AS s (status, jobs);
    IF NOT FOUND THEN
        PERFORM ingot.refuse('IN001', 'there is no such job');
    END IF;
END
$$;

-- Change a waiting job, or the tags of any job.
CREATE OR REPLACE FUNCTION ingot.change(
    of_tenant uuid, of_job uuid, new_priority integer, new_run_at bigint, new_max_attempts integer, new_tags text[]
) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
DECLARE
    now bigint := ingot.clock();
    moves boolean := coalesce(new_priority, new_run_at, new_max_attempts) IS NOT NULL;
    jobs_changed integer;
    current_status text;
BEGIN
    PERFORM ingot.lock_if_blocked(of_tenant, of_job);
    WITH ready AS (
        DELETE FROM ingot.ready AS r WHERE moves AND r.id = of_job AND r.tenant = of_tenant RETURNING r.*
    ),
    later AS (
        DELETE FROM ingot.later AS w WHERE moves AND w.id = of_job AND w.tenant = of_tenant RETURNING w.*
    ),
    blocked AS (
        DELETE FROM ingot.blocked AS b WHERE moves AND b.id = of_job AND b.tenant = of_tenant RETURNING b.*
    ),
    waiting AS MATERIALIZED (
        SELECT w.*, coalesce(new_priority, w.priority)::smallint AS final_priority,
            coalesce(new_max_attempts, w.max_attempts) AS final_max_attempts,
            CASE WHEN new_run_at IS NULL THEN w.run_at ELSE greatest(now, new_run_at) END AS due_at
        FROM (
            SELECT *, false AS is_blocked FROM ready UNION ALL SELECT *, false FROM later UNION ALL SELECT *, true FROM blocked
        ) AS w
    ),
    added_blocked AS (
        INSERT INTO ingot.blocked (
            id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts, fence,
            told_at
        )
        SELECT id, tenant, type, limit_key, batch, dedupe_key, final_priority, due_at, attempts, failures, crashes,
            final_max_attempts, fence, told_at
        FROM waiting WHERE is_blocked
    ),
    added_ready AS (
        INSERT INTO ingot.ready (
            id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts, fence,
            told_at
        )
        SELECT id, tenant, type, limit_key, batch, dedupe_key, final_priority, due_at, attempts, failures, crashes,
            final_max_attempts, fence, told_at
        FROM waiting WHERE due_at <= now AND NOT is_blocked
    ),
    added_later AS (
        INSERT INTO ingot.later (
            id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts, fence,
            told_at
        )
        SELECT id, tenant, type, limit_key, batch, dedupe_key, final_priority, due_at, attempts, failures, crashes,
            final_max_attempts, fence, told_at
        FROM waiting WHERE due_at > now AND NOT is_blocked
    ),
    -- If only tags change, the row with the status is locked so that the event describes the current state.
    locked_ready AS MATERIALIZED (SELECT FROM ingot.ready AS r WHERE NOT moves AND r.id = of_job FOR UPDATE),
    locked_later AS MATERIALIZED (SELECT FROM ingot.later AS w WHERE NOT moves AND w.id = of_job FOR UPDATE),
    locked_blocked AS MATERIALIZED (SELECT FROM ingot.blocked AS b WHERE NOT moves AND b.id = of_job FOR UPDATE),
    locked_lease AS MATERIALIZED (SELECT l.changed_by FROM ingot.leases AS l WHERE NOT moves AND l.id = of_job FOR UPDATE),
    locked_body AS MATERIALIZED (
        SELECT FROM ingot.jobs AS j WHERE new_tags IS NOT NULL AND j.id = of_job AND j.tenant = of_tenant FOR SHARE
    ),
    current_job AS MATERIALIZED (
        SELECT s.*, CASE
            WHEN NOT moves AND s.finished_at IS NULL AND NOT (
                EXISTS (SELECT FROM locked_ready) OR EXISTS (SELECT FROM locked_later) OR EXISTS (SELECT FROM locked_blocked)
                OR EXISTS (SELECT FROM locked_lease)
            ) THEN ingot.retry_transaction()
            -- We waited for a change that our snapshot does not show.
            WHEN EXISTS (
                SELECT FROM locked_lease AS l WHERE NOT pg_visible_in_snapshot(l.changed_by, pg_current_snapshot())
            ) THEN ingot.retry_transaction()
        END AS checked
        FROM ingot.job_rows AS s
        WHERE s.id = of_job AND s.tenant = of_tenant AND (NOT moves OR EXISTS (SELECT FROM waiting))
            AND (new_tags IS NULL OR EXISTS (SELECT FROM locked_body))
    ),
    deleted_tags AS (
        DELETE FROM ingot.tags AS g USING current_job AS s
        WHERE new_tags IS NOT NULL AND g.job = s.id AND g.tag <> ALL (new_tags)
    ),
    added_tags AS (
        INSERT INTO ingot.tags (job, tag, tenant)
        SELECT s.id, g.tag, s.tenant FROM current_job AS s CROSS JOIN unnest(new_tags) AS g (tag)
        ON CONFLICT DO NOTHING
    ),
    added_events AS (
        INSERT INTO ingot.events (tenant, position, at, entries)
        SELECT s.tenant, ingot.event_position(pg_current_xact_id()), now,
            '[' || ingot.job_event_entry('job.updated', ingot.quoted_id(s.id), s.type, s.status, s.attempts,
            s.failures, s.crashes, s.fence, CASE WHEN s.status = 'running' THEN s.worker_id END,
            CASE WHEN s.status IN ('blocked', 'queued') THEN coalesce(w.due_at, s.run_at) END, NULL, NULL,
            s.cancel_requested, s.percent, s.stage) || ']'
        FROM current_job AS s LEFT JOIN waiting AS w ON true
        WHERE moves OR new_tags IS NOT NULL
    )
    SELECT count(*) INTO jobs_changed FROM current_job;
    IF jobs_changed = 0 THEN
        SELECT s.status INTO current_status FROM ingot.job_rows AS s WHERE s.id = of_job AND s.tenant = of_tenant;
        IF current_status IS NULL THEN
            PERFORM ingot.refuse('IN001', 'there is no such job');
        ELSIF current_status IN ('blocked', 'queued') THEN
            PERFORM ingot.retry_transaction();  -- Another transaction moved the job meanwhile.
        ELSE
            PERFORM ingot.refuse('IN004', format('the job is %s', current_status));
        END IF;
    END IF;
END
$$;
