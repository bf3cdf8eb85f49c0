-- The current state of jobs whose attempts are not running, and the outcomes of the attempts with these fences.
CREATE OR REPLACE FUNCTION ingot.find_attempts(ids uuid[], fences bigint[])
RETURNS TABLE (
    place integer, tenant text, status text, held_fence bigint, outcome text, retry boolean, status_after text,
    run_at bigint, attempts integer, finished_at bigint, exit_code bigint, error text, result bytea, worker_id text
)
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
BEGIN
    RETURN QUERY
    SELECT a.place::integer, s.tenant::text, s.status, s.fence, o.outcome, o.retry, o.status_after, o.run_at, o.attempts,
        o.finished_at, o.exit_code, o.error, o.result, o.worker_id
    FROM unnest(ids, fences) WITH ORDINALITY AS a (id, fence, place)
    JOIN ingot.job_rows AS s ON s.id = a.id
    LEFT JOIN ingot.outcomes AS o ON o.job = a.id AND o.fence = a.fence
    ORDER BY a.place;
END
$$;

-- The newest job below `below` that may have an ended attempt of this tenant: no job between the two has one. Examines
-- at most `rows_max` outcomes.
CREATE OR REPLACE FUNCTION ingot.newest_ended_job(of_tenant uuid, below uuid, rows_max integer) RETURNS uuid
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
    WITH recent_attempts AS MATERIALIZED (
        SELECT o.job, o.tenant FROM ingot.outcomes AS o WHERE o.job < below ORDER BY o.job DESC LIMIT rows_max
    )
    SELECT coalesce(
        (SELECT l.job FROM recent_attempts AS l WHERE l.tenant = of_tenant ORDER BY l.job DESC LIMIT 1),
        (SELECT l.job FROM recent_attempts AS l ORDER BY l.job DESC LIMIT 1 OFFSET rows_max - 1),
        '00000000-0000-0000-0000-000000000000'
    )
$$;
