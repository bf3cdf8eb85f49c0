-- The tenants and types with finished jobs and a retention, of one tenant or of all. Jobs that finished up to `cutoff` are
-- due for removal; with `keeps_history` a history entry of each stays. Types are found by skipping through the index.
CREATE OR REPLACE FUNCTION ingot.retention_cutoffs(of_tenant uuid)
RETURNS TABLE (tenant uuid, type text, cutoff bigint, keeps_history boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    now bigint := ingot.clock();
BEGIN
    IF NOT EXISTS (SELECT FROM ingot.definitions AS d WHERE d.definition::json ->> 'retention_seconds' IS NOT NULL)
        AND NOT EXISTS (SELECT FROM ingot.tenants AS t WHERE t.limits::json ->> 'retention_seconds' IS NOT NULL) THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH RECURSIVE tenant_types AS (
        (
            SELECT e.tenant, e.type FROM ingot.endings AS e
            WHERE (e.tenant, e.type) >= (coalesce(of_tenant, '00000000-0000-0000-0000-000000000000'), '')
            ORDER BY e.tenant, e.type LIMIT 1
        )
        UNION ALL
        SELECT n.tenant, n.type FROM tenant_types AS k CROSS JOIN LATERAL (
            SELECT e.tenant, e.type FROM ingot.endings AS e
            WHERE (e.tenant, e.type) > (k.tenant, k.type)
            ORDER BY e.tenant, e.type LIMIT 1
        ) AS n
        WHERE of_tenant IS NULL OR k.tenant = of_tenant
    )
    SELECT r.tenant, r.type, now - (least(r.seconds, 1e10) * 1000000)::bigint, r.keeps_history
    FROM (
        SELECT k.tenant, k.type, coalesce((d.definition ->> 'keep_history')::boolean, false) AS keeps_history, coalesce(
            (d.definition ->> 'retention_seconds')::double precision,
            (t.limits::json ->> 'retention_seconds')::double precision
        ) AS seconds
        FROM tenant_types AS k
        JOIN ingot.tenants AS t ON t.id = k.tenant
        LEFT JOIN LATERAL (
            SELECT d.definition::json AS definition FROM ingot.definitions AS d
            WHERE d.type = k.type AND d.tenant IN (k.tenant, '00000000-0000-0000-0000-000000000000')
            ORDER BY d.tenant DESC LIMIT 1
        ) AS d ON true
        WHERE of_tenant IS NULL OR k.tenant = of_tenant
    ) AS r
    WHERE r.seconds IS NOT NULL;
END
$$;

-- Remove finished jobs whose retention has passed, examining at most `jobs_max`.
-- Groups of jobs that finished together are taken from `endings`, and their jobs are locked and then checked: a retry takes
-- the same lock before it moves its job, so a job that is still finished under our lock stays finished. Jobs that another
-- transaction has locked are skipped and put back into `endings` for the next call.
CREATE OR REPLACE FUNCTION ingot.collect_jobs(jobs_max integer)
RETURNS TABLE (removed bigint, kept bigint, more boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    ids uuid[];
    tenants uuid[];
    types text[];
    times bigint[];
    cutoffs bigint[];
    history_flags boolean[];
    locked boolean[];
    has_more boolean;
BEGIN
    WITH due AS MATERIALIZED (
        SELECT e.at, k.tenant, k.type, k.cutoff, k.keeps_history, e.finished_at, e.size, e.jobs
        FROM ingot.retention_cutoffs(NULL) AS k CROSS JOIN LATERAL (
            SELECT e.ctid AS at, e.finished_at, e.size, e.jobs FROM ingot.endings AS e
            WHERE e.tenant = k.tenant AND e.type = k.type AND e.finished_at <= k.cutoff
            ORDER BY e.finished_at LIMIT jobs_max + 1
            FOR UPDATE SKIP LOCKED
        ) AS e
        LIMIT jobs_max + 1
    ),
    ranked AS MATERIALIZED (
        SELECT d.*, sum(d.size) OVER (ROWS UNBOUNDED PRECEDING) - d.size AS jobs_before FROM due AS d
    ),
    deleted_endings AS (
        DELETE FROM ingot.endings AS e
        WHERE e.ctid = ANY (ARRAY(SELECT p.at FROM ranked AS p WHERE p.jobs_before < jobs_max))
    ),
    candidates AS MATERIALIZED (
        SELECT p.tenant, p.type, p.cutoff, p.keeps_history, p.finished_at, j.id, p.jobs_before + j.place AS place
        FROM ranked AS p CROSS JOIN unnest(p.jobs) WITH ORDINALITY AS j (id, place) WHERE p.jobs_before < jobs_max
    ),
    added_remainders AS (
        INSERT INTO ingot.endings (tenant, type, finished_at, size, jobs)
        SELECT n.tenant, n.type, n.finished_at, count(*), array_agg(n.id ORDER BY n.place)
        FROM candidates AS n WHERE n.place > jobs_max GROUP BY n.tenant, n.type, n.finished_at
    ),
    examined AS (
        SELECT DISTINCT ON (n.id) n.* FROM candidates AS n WHERE n.place <= jobs_max ORDER BY n.id, n.place
    )
    SELECT array_agg(a.id ORDER BY a.id), array_agg(a.tenant ORDER BY a.id), array_agg(a.type ORDER BY a.id),
        array_agg(a.finished_at ORDER BY a.id), array_agg(a.cutoff ORDER BY a.id), array_agg(a.keeps_history ORDER BY a.id),
        (SELECT coalesce(sum(d.size), 0) > jobs_max FROM due AS d)
    INTO ids, tenants, types, times, cutoffs, history_flags, has_more
    FROM examined AS a;
    IF ids IS NULL THEN
        RETURN QUERY SELECT 0::bigint, 0::bigint, false;
        RETURN;
    END IF;
    SELECT array_agg(h.id IS NOT NULL ORDER BY a.place) INTO locked
    FROM unnest(ids) WITH ORDINALITY AS a (id, place) LEFT JOIN LATERAL (
        SELECT j.id FROM ingot.jobs AS j WHERE j.id = a.id FOR UPDATE SKIP LOCKED
    ) AS h ON true;
    RETURN QUERY
    WITH examined AS MATERIALIZED (
        SELECT a.*, EXISTS (SELECT FROM ingot.waits AS w WHERE w.parent = a.id AND w.open) AS awaited
        FROM unnest(ids, tenants, types, times, cutoffs, history_flags, locked)
            AS a (id, tenant, type, finished_at, cutoff, keeps_history, locked)
    ),
    removed_jobs AS MATERIALIZED (
        SELECT s.*, a.keeps_history FROM examined AS a CROSS JOIN LATERAL (
            SELECT s.id, s.tenant, s.type, s.status, s.attempts, s.created_at, s.finished_at, s.idempotency_key,
                s.reuse_key,
                CASE WHEN a.keeps_history THEN left(s.last_error, 200) END AS last_error
            FROM ingot.job_rows AS s WHERE s.id = a.id
        ) AS s
        WHERE a.locked AND NOT a.awaited AND s.tenant = a.tenant AND s.type = a.type AND s.finished_at <= a.cutoff
    ),
    skipped AS (
        INSERT INTO ingot.endings (tenant, type, finished_at, size, jobs)
        SELECT a.tenant, a.type, a.finished_at, count(*), array_agg(a.id) FROM examined AS a
        WHERE (NOT a.locked OR a.awaited) AND EXISTS (SELECT FROM ingot.jobs AS j WHERE j.id = a.id)
        GROUP BY a.tenant, a.type, a.finished_at
    ),
    added_history AS (
        INSERT INTO ingot.history (tenant, finished_at, id, type, status, attempts, created_at, last_error)
        SELECT tenant, finished_at, id, type, status, attempts, created_at, last_error FROM removed_jobs WHERE keeps_history
        ON CONFLICT DO NOTHING
    ),
    deleted_idempotency_keys AS (
        DELETE FROM ingot.idempotency_keys AS k USING removed_jobs AS d
        WHERE d.idempotency_key IS NOT NULL
            AND k.tenant = d.tenant AND k.type = d.type AND k.key = d.idempotency_key AND k.job = d.id
    ),
    deleted_reuse_keys AS (
        DELETE FROM ingot.reuse_keys AS k USING removed_jobs AS d
        WHERE d.reuse_key IS NOT NULL AND k.tenant = d.tenant AND k.type = d.type AND k.key = d.reuse_key AND k.job = d.id
    ),
    deleted_waits AS (DELETE FROM ingot.waits AS w WHERE w.job = ANY (ARRAY(SELECT id FROM removed_jobs))),
    deleted_tags AS (DELETE FROM ingot.tags AS g WHERE g.job = ANY (ARRAY(SELECT id FROM removed_jobs))),
    deleted_logs AS (DELETE FROM ingot.logs AS g WHERE g.job = ANY (ARRAY(SELECT id FROM removed_jobs))),
    deleted_outcomes AS (DELETE FROM ingot.outcomes AS o WHERE o.job = ANY (ARRAY(SELECT id FROM removed_jobs))),
    deleted_canceled AS (DELETE FROM ingot.canceled AS c WHERE c.id = ANY (ARRAY(SELECT id FROM removed_jobs))),
    deleted_jobs AS (DELETE FROM ingot.jobs AS j WHERE j.id = ANY (ARRAY(SELECT id FROM removed_jobs))),
    added_counts AS (
        INSERT INTO ingot.count_deltas (tenant, type, status, jobs)
        SELECT tenant, type, status, -count(*) FROM removed_jobs GROUP BY tenant, type, status
    )
    SELECT count(*), count(*) FILTER (WHERE keeps_history), has_more FROM removed_jobs;
    PERFORM ingot.drop_job_files(ids);
END
$$;
