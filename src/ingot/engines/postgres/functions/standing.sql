-- Where jobs stand whose attempts were not found to be held, and how the attempts with these fences ended before.
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

-- No attempt of this tenant on a job between this id and the one given has ended, as far as so many rows tell.
CREATE OR REPLACE FUNCTION ingot.newest_ended(of_tenant uuid, below uuid, rows_max integer) RETURNS uuid
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
    WITH looked AS MATERIALIZED (
        SELECT o.job, o.tenant FROM ingot.outcomes AS o WHERE o.job < below ORDER BY o.job DESC LIMIT rows_max
    )
    SELECT coalesce(
        (SELECT l.job FROM looked AS l WHERE l.tenant = of_tenant ORDER BY l.job DESC LIMIT 1),
        (SELECT l.job FROM looked AS l ORDER BY l.job DESC LIMIT 1 OFFSET rows_max - 1),
        '00000000-0000-0000-0000-000000000000'
    )
$$;
