-- The tenants and types that have finished jobs which are not kept for ever, of one tenant or of all: what finished up to
-- `cutoff` has been kept long enough, and with `keeps` an entry of it stays. Found by jumping from type to type in the
-- index.
CREATE OR REPLACE FUNCTION ingot.keeping(of_tenant uuid)
RETURNS TABLE (tenant uuid, type text, cutoff bigint, keeps boolean)
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
    WITH RECURSIVE kinds AS (
        (
            SELECT e.tenant, e.type FROM ingot.endings AS e
            WHERE (e.tenant, e.type) >= (coalesce(of_tenant, '00000000-0000-0000-0000-000000000000'), '')
            ORDER BY e.tenant, e.type LIMIT 1
        )
        UNION ALL
        SELECT n.tenant, n.type FROM kinds AS k CROSS JOIN LATERAL (
            SELECT e.tenant, e.type FROM ingot.endings AS e
            WHERE (e.tenant, e.type) > (k.tenant, k.type)
            ORDER BY e.tenant, e.type LIMIT 1
        ) AS n
        WHERE of_tenant IS NULL OR k.tenant = of_tenant
    )
    SELECT r.tenant, r.type, now - (least(r.seconds, 1e10) * 1000000)::bigint, r.keeps
    FROM (
        SELECT k.tenant, k.type, coalesce((d.rules ->> 'keep_history')::boolean, false) AS keeps, coalesce(
            (d.rules ->> 'retention_seconds')::double precision,
            (t.limits::json ->> 'retention_seconds')::double precision
        ) AS seconds
        FROM kinds AS k
        JOIN ingot.tenants AS t ON t.id = k.tenant
        LEFT JOIN LATERAL (
            SELECT d.definition::json AS rules FROM ingot.definitions AS d
            WHERE d.type = k.type AND d.tenant IN (k.tenant, '00000000-0000-0000-0000-000000000000')
            ORDER BY d.tenant DESC LIMIT 1
        ) AS d ON true
        WHERE of_tenant IS NULL OR k.tenant = of_tenant
    ) AS r
    WHERE r.seconds IS NOT NULL;
END
$$;

-- Remove finished jobs that have been kept long enough, looking at a bounded number of them.
-- What finished together is taken from `endings`, its jobs are locked, and then looked at: a retry holds the lock before
-- its job moves, so a job that is still finished under our lock stays so. One that somebody else holds is not waited
-- for, and is named again for the next round.
CREATE OR REPLACE FUNCTION ingot.collect(jobs_max integer)
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
    kinds_kept boolean[];
    held boolean[];
    left_over boolean;
BEGIN
    WITH due AS MATERIALIZED (
        SELECT e.at, k.tenant, k.type, k.cutoff, k.keeps, e.finished_at, e.size, e.jobs
        FROM ingot.keeping(NULL) AS k CROSS JOIN LATERAL (
            SELECT e.ctid AS at, e.finished_at, e.size, e.jobs FROM ingot.endings AS e
            WHERE e.tenant = k.tenant AND e.type = k.type AND e.finished_at <= k.cutoff
            ORDER BY e.finished_at LIMIT jobs_max + 1
            FOR UPDATE SKIP LOCKED
        ) AS e
        LIMIT jobs_max + 1
    ),
    placed AS MATERIALIZED (
        SELECT d.*, sum(d.size) OVER (ROWS UNBOUNDED PRECEDING) - d.size AS before FROM due AS d
    ),
    gone AS (
        DELETE FROM ingot.endings AS e
        WHERE e.ctid = ANY (ARRAY(SELECT p.at FROM placed AS p WHERE p.before < jobs_max))
    ),
    named AS MATERIALIZED (
        SELECT p.tenant, p.type, p.cutoff, p.keeps, p.finished_at, j.id, p.before + j.place AS place
        FROM placed AS p CROSS JOIN unnest(p.jobs) WITH ORDINALITY AS j (id, place) WHERE p.before < jobs_max
    ),
    rest AS (
        INSERT INTO ingot.endings (tenant, type, finished_at, size, jobs)
        SELECT n.tenant, n.type, n.finished_at, count(*), array_agg(n.id ORDER BY n.place)
        FROM named AS n WHERE n.place > jobs_max GROUP BY n.tenant, n.type, n.finished_at
    ),
    asked AS (
        SELECT DISTINCT ON (n.id) n.* FROM named AS n WHERE n.place <= jobs_max ORDER BY n.id, n.place
    )
    SELECT array_agg(a.id ORDER BY a.id), array_agg(a.tenant ORDER BY a.id), array_agg(a.type ORDER BY a.id),
        array_agg(a.finished_at ORDER BY a.id), array_agg(a.cutoff ORDER BY a.id), array_agg(a.keeps ORDER BY a.id),
        (SELECT coalesce(sum(d.size), 0) > jobs_max FROM due AS d)
    INTO ids, tenants, types, times, cutoffs, kinds_kept, left_over
    FROM asked AS a;
    IF ids IS NULL THEN
        RETURN QUERY SELECT 0::bigint, 0::bigint, false;
        RETURN;
    END IF;
    SELECT array_agg(h.id IS NOT NULL ORDER BY a.place) INTO held
    FROM unnest(ids) WITH ORDINALITY AS a (id, place) LEFT JOIN LATERAL (
        SELECT j.id FROM ingot.jobs AS j WHERE j.id = a.id FOR UPDATE SKIP LOCKED
    ) AS h ON true;
    RETURN QUERY
    WITH asked AS MATERIALIZED (
        SELECT a.*, EXISTS (SELECT FROM ingot.waits AS w WHERE w.parent = a.id AND w.open) AS awaited
        FROM unnest(ids, tenants, types, times, cutoffs, kinds_kept, held)
            AS a (id, tenant, type, finished_at, cutoff, keeps, held)
    ),
    doomed AS MATERIALIZED (
        SELECT s.*, a.keeps FROM asked AS a CROSS JOIN LATERAL (
            SELECT s.id, s.tenant, s.type, s.status, s.attempts, s.created_at, s.finished_at, s.idempotency_key,
                s.reuse_key,
                CASE WHEN a.keeps THEN left(s.last_error, 200) END AS last_error
            FROM ingot.job_rows AS s WHERE s.id = a.id
        ) AS s
        WHERE a.held AND NOT a.awaited AND s.tenant = a.tenant AND s.type = a.type AND s.finished_at <= a.cutoff
    ),
    again AS (
        INSERT INTO ingot.endings (tenant, type, finished_at, size, jobs)
        SELECT a.tenant, a.type, a.finished_at, count(*), array_agg(a.id) FROM asked AS a
        WHERE (NOT a.held OR a.awaited) AND EXISTS (SELECT FROM ingot.jobs AS j WHERE j.id = a.id)
        GROUP BY a.tenant, a.type, a.finished_at
    ),
    told AS (
        INSERT INTO ingot.history (tenant, finished_at, id, type, status, attempts, created_at, last_error)
        SELECT tenant, finished_at, id, type, status, attempts, created_at, last_error FROM doomed WHERE keeps
        ON CONFLICT DO NOTHING
    ),
    without_key AS (
        DELETE FROM ingot.idempotency_keys AS k USING doomed AS d
        WHERE d.idempotency_key IS NOT NULL
            AND k.tenant = d.tenant AND k.type = d.type AND k.key = d.idempotency_key AND k.job = d.id
    ),
    without_reuse AS (
        DELETE FROM ingot.reuse_keys AS k USING doomed AS d
        WHERE d.reuse_key IS NOT NULL AND k.tenant = d.tenant AND k.type = d.type AND k.key = d.reuse_key AND k.job = d.id
    ),
    without_waits AS (DELETE FROM ingot.waits AS w WHERE w.job = ANY (ARRAY(SELECT id FROM doomed))),
    without_tags AS (DELETE FROM ingot.tags AS g WHERE g.job = ANY (ARRAY(SELECT id FROM doomed))),
    without_logs AS (DELETE FROM ingot.logs AS g WHERE g.job = ANY (ARRAY(SELECT id FROM doomed))),
    without_outcomes AS (DELETE FROM ingot.outcomes AS o WHERE o.job = ANY (ARRAY(SELECT id FROM doomed))),
    without_cancel AS (DELETE FROM ingot.canceled AS c WHERE c.id = ANY (ARRAY(SELECT id FROM doomed))),
    without_body AS (DELETE FROM ingot.jobs AS j WHERE j.id = ANY (ARRAY(SELECT id FROM doomed))),
    counted AS (
        INSERT INTO ingot.count_deltas (tenant, type, status, jobs)
        SELECT tenant, type, status, -count(*) FROM doomed GROUP BY tenant, type, status
    )
    SELECT count(*), count(*) FILTER (WHERE keeps), left_over FROM doomed;
    PERFORM ingot.drop_job_files(ids);
END
$$;
