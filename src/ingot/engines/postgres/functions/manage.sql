-- Refuse a call: the code names one of our errors, the message says more.
CREATE OR REPLACE FUNCTION ingot.refuse(code text, message text, other text DEFAULT '') RETURNS boolean
LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION '%', message USING ERRCODE = code, DETAIL = other;
END
$$;

-- Cancel a waiting job at once; of a running one record that it should stop. Answers how many jobs that changed.
CREATE OR REPLACE FUNCTION ingot.cancel(of_tenant uuid, of_job uuid) RETURNS integer
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
    changed integer;
    standing text;
    requested boolean;
    awaits boolean;
BEGIN
    PERFORM ingot.lock_blocked(of_tenant, of_job);
    awaits := ingot.lacks_input(of_job) AND EXISTS (SELECT FROM ingot.jobs AS j WHERE j.id = of_job AND j.tenant = of_tenant);
    IF awaits THEN
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
        SELECT *, 'queued' AS was FROM ready UNION ALL SELECT *, 'queued' FROM later UNION ALL SELECT *, 'blocked' FROM blocked
    ),
    untied AS (
        UPDATE ingot.waits AS w SET open = false FROM blocked AS b WHERE w.job = b.id AND w.open
    ),
    batched AS (
        INSERT INTO ingot.batch_deltas (tenant, batch, status, jobs)
        SELECT tenant, batch, 'canceled', 1 FROM waiting WHERE batch IS NOT NULL
    ),
    kept AS (
        INSERT INTO ingot.canceled (
            id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts, fence,
            told_at, finished_at
        )
        SELECT id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts,
            fence, told_at, now
        FROM waiting
    ),
    noted AS (
        INSERT INTO ingot.endings (tenant, type, finished_at, size, jobs) SELECT tenant, type, now, 1, ARRAY[id] FROM waiting
    ),
    freed AS (
        DELETE FROM ingot.dedupe_keys AS k USING waiting AS w
        WHERE w.dedupe_key IS NOT NULL AND k.tenant = w.tenant AND k.key = w.dedupe_key
    ),
    held AS MATERIALIZED (
        SELECT l.changed_by FROM ingot.leases AS l
        WHERE l.id = of_job AND l.tenant = of_tenant AND NOT l.cancel_requested
        FOR UPDATE
    ),
    checked AS MATERIALIZED (
        SELECT CASE WHEN h.changed_by > pg_current_xact_id() THEN ingot.begin_again() END FROM held AS h
    ),
    asked AS (
        UPDATE ingot.leases AS l SET cancel_requested = true, changed_by = pg_current_xact_id()
        FROM checked WHERE l.id = of_job
        RETURNING l.*
    ),
    told AS (
        INSERT INTO ingot.events (tenant, position, at, entries)
        SELECT tenant, ingot.position(pg_current_xact_id()), now, '[' || ingot.news('job.canceled', ingot.ids(id), type, 'canceled', attempts,
            failures, crashes, fence, NULL, NULL, NULL, NULL, false, NULL, NULL) || ']'
        FROM waiting
        UNION ALL
        SELECT tenant, ingot.position(pg_current_xact_id()), now, '[' || ingot.news('job.updated', ingot.ids(id), type, 'running', attempts,
            failures, crashes, fence, worker_id, NULL, NULL, NULL, true, percent, stage) || ']'
        FROM asked
    ),
    counted AS (
        INSERT INTO ingot.count_deltas (tenant, type, status, jobs)
        SELECT w.tenant, w.type, s.status, s.jobs
        FROM waiting AS w CROSS JOIN LATERAL (VALUES (w.was, -1), ('canceled', 1)) AS s (status, jobs)
    )
    SELECT (SELECT count(*) FROM waiting) + (SELECT count(*) FROM asked) INTO changed;
    IF changed = 0 THEN
        SELECT s.status, s.cancel_requested INTO standing, requested
        FROM ingot.job_rows AS s WHERE s.id = of_job AND s.tenant = of_tenant;
        IF standing IS NULL THEN
            PERFORM ingot.refuse('IN001', 'there is no such job');
        ELSIF standing IN ('succeeded', 'dead') THEN
            PERFORM ingot.refuse('IN002', format('the job is %s', standing));
        ELSIF standing IN ('blocked', 'queued') OR (standing = 'running' AND NOT requested) THEN
            PERFORM ingot.begin_again();  -- It moved while we looked.
        END IF;
    END IF;
    IF awaits THEN
        PERFORM ingot.drop_inputs(ARRAY[of_job], now);
    END IF;
    RETURN changed;
END
$$;

-- Put a finished job back in the queue.
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
    standing text;
    holder uuid;
BEGIN
    -- Two retries of one job must not both find it finished. This lock, unlike that of a row, gives us no transaction
    -- id before the statement below has its snapshot.
    PERFORM pg_advisory_xact_lock(hashtextextended(of_job::text, 7303));
    PERFORM ingot.lock_capped(ARRAY[of_tenant]);
    now := ingot.clock();
    SELECT s.status INTO standing FROM ingot.job_rows AS s WHERE s.id = of_job AND s.tenant = of_tenant;
    IF standing IS NULL OR NOT EXISTS (SELECT FROM ingot.tenants AS t WHERE t.id = of_tenant) THEN
        PERFORM ingot.refuse('IN001', 'there is no such job');
    ELSIF standing NOT IN ('succeeded', 'dead', 'canceled') THEN
        PERFORM ingot.refuse('IN003', format('the job is %s', standing));
    END IF;
    PERFORM ingot.refuse('IN069', format('the input %s of the job never came', i.key))
    FROM ingot.jobs AS j CROSS JOIN LATERAL jsonb_each(j.inputs) AS i WHERE j.id = of_job AND jsonb_typeof(i.value) = 'null';
    SELECT k.job INTO holder FROM ingot.jobs AS j
    JOIN ingot.dedupe_keys AS k ON k.tenant = j.tenant AND k.key = j.dedupe_key
    WHERE j.id = of_job AND j.dedupe_key IS NOT NULL;
    IF holder IS NOT NULL THEN
        PERFORM ingot.refuse('IN005', format('the unfinished job %s holds this job''s dedupe key', holder), holder::text);
    END IF;
    PERFORM ingot.expect_room(ARRAY[of_tenant]);
    -- Whoever removes finished jobs lets this one be, or has removed it already and we find nothing.
    WITH body AS MATERIALIZED (
        SELECT FROM ingot.jobs AS j WHERE j.id = of_job AND j.tenant = of_tenant FOR SHARE
    ),
    again AS MATERIALIZED (
        SELECT s.*, CASE WHEN reset_attempts THEN 0 ELSE s.failures END AS own_failures,
            CASE WHEN reset_attempts THEN 0 ELSE s.crashes END AS own_crashes,
            coalesce(new_priority, s.priority)::smallint AS own_priority,
            coalesce(new_max_attempts, s.max_attempts) AS own_max_attempts,
            greatest(now, new_run_at) AS due_at
        FROM ingot.job_rows AS s WHERE s.id = of_job AND s.tenant = of_tenant AND EXISTS (SELECT FROM body)
    ),
    gone AS (
        DELETE FROM ingot.canceled AS c USING again AS a WHERE c.id = a.id
    ),
    held AS (
        INSERT INTO ingot.dedupe_keys (tenant, key, job)
        SELECT tenant, dedupe_key, id FROM again WHERE dedupe_key IS NOT NULL
    ),
    spent AS (
        INSERT INTO ingot.buckets AS b (tenant, jobs, at)
        SELECT c.tenant, c.rate_left - 1, now FROM again AS a
        CROSS JOIN LATERAL ingot.caps(ARRAY[a.tenant], now) AS c WHERE c.rate_left IS NOT NULL
        ON CONFLICT (tenant) DO UPDATE SET jobs = excluded.jobs, at = excluded.at
    ),
    due AS (
        INSERT INTO ingot.ready (
            id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts, fence,
            told_at
        )
        SELECT id, tenant, type, limit_key, batch, dedupe_key, own_priority, due_at, attempts, own_failures, own_crashes,
            own_max_attempts, fence, told_at
        FROM again WHERE due_at <= now
    ),
    waiting AS (
        INSERT INTO ingot.later (
            id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts, fence,
            told_at
        )
        SELECT id, tenant, type, limit_key, batch, dedupe_key, own_priority, due_at, attempts, own_failures, own_crashes,
            own_max_attempts, fence, told_at
        FROM again WHERE due_at > now
    ),
    told AS (
        INSERT INTO ingot.events (tenant, position, at, entries)
        SELECT tenant, ingot.position(pg_current_xact_id()), now, '[' || ingot.news('job.retried', ingot.ids(id), type, 'queued', attempts,
            own_failures, own_crashes, fence, NULL, due_at, NULL, NULL, false, NULL, NULL) || ']'
        FROM again
    ),
    batched AS (
        INSERT INTO ingot.batch_deltas (tenant, batch, status, jobs)
        SELECT tenant, batch, status, -1 FROM again WHERE batch IS NOT NULL
    ),
    reopened AS (
        UPDATE ingot.batches AS b SET told = 0 FROM again AS a WHERE b.tenant = a.tenant AND b.batch = a.batch
    )
    INSERT INTO ingot.count_deltas (tenant, type, status, jobs)
    SELECT a.tenant, a.type, s.status, s.jobs
    FROM again AS a CROSS JOIN LATERAL (VALUES (a.status, -1), ('queued', 1)) AS s (status, jobs);
    IF NOT FOUND THEN
        PERFORM ingot.refuse('IN001', 'there is no such job');
    END IF;
END
$$;

-- Change a waiting job, or the tags of any.
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
    moving boolean := coalesce(new_priority, new_run_at, new_max_attempts) IS NOT NULL;
    changed integer;
    standing text;
BEGIN
    PERFORM ingot.lock_blocked(of_tenant, of_job);
    WITH ready AS (
        DELETE FROM ingot.ready AS r WHERE moving AND r.id = of_job AND r.tenant = of_tenant RETURNING r.*
    ),
    later AS (
        DELETE FROM ingot.later AS w WHERE moving AND w.id = of_job AND w.tenant = of_tenant RETURNING w.*
    ),
    blocked AS (
        DELETE FROM ingot.blocked AS b WHERE moving AND b.id = of_job AND b.tenant = of_tenant RETURNING b.*
    ),
    waiting AS MATERIALIZED (
        SELECT w.*, coalesce(new_priority, w.priority)::smallint AS own_priority,
            coalesce(new_max_attempts, w.max_attempts) AS own_max_attempts,
            CASE WHEN new_run_at IS NULL THEN w.run_at ELSE greatest(now, new_run_at) END AS due_at
        FROM (
            SELECT *, false AS waits FROM ready UNION ALL SELECT *, false FROM later UNION ALL SELECT *, true FROM blocked
        ) AS w
    ),
    waits_on AS (
        INSERT INTO ingot.blocked (
            id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts, fence,
            told_at
        )
        SELECT id, tenant, type, limit_key, batch, dedupe_key, own_priority, due_at, attempts, failures, crashes,
            own_max_attempts, fence, told_at
        FROM waiting WHERE waits
    ),
    due AS (
        INSERT INTO ingot.ready (
            id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts, fence,
            told_at
        )
        SELECT id, tenant, type, limit_key, batch, dedupe_key, own_priority, due_at, attempts, failures, crashes,
            own_max_attempts, fence, told_at
        FROM waiting WHERE due_at <= now AND NOT waits
    ),
    put_off AS (
        INSERT INTO ingot.later (
            id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts, failures, crashes, max_attempts, fence,
            told_at
        )
        SELECT id, tenant, type, limit_key, batch, dedupe_key, own_priority, due_at, attempts, failures, crashes,
            own_max_attempts, fence, told_at
        FROM waiting WHERE due_at > now AND NOT waits
    ),
    -- With new tags only, the row that moves is held still, so that what we tell of it is true when we tell it.
    held_ready AS MATERIALIZED (SELECT FROM ingot.ready AS r WHERE NOT moving AND r.id = of_job FOR UPDATE),
    held_later AS MATERIALIZED (SELECT FROM ingot.later AS w WHERE NOT moving AND w.id = of_job FOR UPDATE),
    held_blocked AS MATERIALIZED (SELECT FROM ingot.blocked AS b WHERE NOT moving AND b.id = of_job FOR UPDATE),
    held_lease AS MATERIALIZED (SELECT l.changed_by FROM ingot.leases AS l WHERE NOT moving AND l.id = of_job FOR UPDATE),
    body AS MATERIALIZED (
        SELECT FROM ingot.jobs AS j WHERE new_tags IS NOT NULL AND j.id = of_job AND j.tenant = of_tenant FOR SHARE
    ),
    job_as_it_is AS MATERIALIZED (
        SELECT s.*, CASE
            WHEN NOT moving AND s.finished_at IS NULL AND NOT (
                EXISTS (SELECT FROM held_ready) OR EXISTS (SELECT FROM held_later) OR EXISTS (SELECT FROM held_blocked)
                OR EXISTS (SELECT FROM held_lease)
            ) THEN ingot.begin_again()
            -- We waited for a change that our snapshot does not have.
            WHEN EXISTS (
                SELECT FROM held_lease AS l WHERE NOT pg_visible_in_snapshot(l.changed_by, pg_current_snapshot())
            ) THEN ingot.begin_again()
        END AS checked
        FROM ingot.job_rows AS s
        WHERE s.id = of_job AND s.tenant = of_tenant AND (NOT moving OR EXISTS (SELECT FROM waiting))
            AND (new_tags IS NULL OR EXISTS (SELECT FROM body))
    ),
    unlabeled AS (
        DELETE FROM ingot.tags AS g USING job_as_it_is AS s
        WHERE new_tags IS NOT NULL AND g.job = s.id AND g.tag <> ALL (new_tags)
    ),
    labeled AS (
        INSERT INTO ingot.tags (job, tag, tenant)
        SELECT s.id, g.tag, s.tenant FROM job_as_it_is AS s CROSS JOIN unnest(new_tags) AS g (tag)
        ON CONFLICT DO NOTHING
    ),
    told AS (
        INSERT INTO ingot.events (tenant, position, at, entries)
        SELECT s.tenant, ingot.position(pg_current_xact_id()), now, '[' || ingot.news('job.updated', ingot.ids(s.id), s.type, s.status, s.attempts,
            s.failures, s.crashes, s.fence, CASE WHEN s.status = 'running' THEN s.worker_id END,
            CASE WHEN s.status IN ('blocked', 'queued') THEN coalesce(w.due_at, s.run_at) END, NULL, NULL, s.cancel_requested, s.percent,
            s.stage) || ']'
        FROM job_as_it_is AS s LEFT JOIN waiting AS w ON true
        WHERE moving OR new_tags IS NOT NULL
    )
    SELECT count(*) INTO changed FROM job_as_it_is;
    IF changed = 0 THEN
        SELECT s.status INTO standing FROM ingot.job_rows AS s WHERE s.id = of_job AND s.tenant = of_tenant;
        IF standing IS NULL THEN
            PERFORM ingot.refuse('IN001', 'there is no such job');
        ELSIF standing IN ('blocked', 'queued') THEN
            PERFORM ingot.begin_again();  -- It moved while we looked.
        ELSE
            PERFORM ingot.refuse('IN004', format('the job is %s', standing));
        END IF;
    END IF;
END
$$;
