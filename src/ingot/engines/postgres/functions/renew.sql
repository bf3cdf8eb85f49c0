-- Renew the leases that are held under these fences; the others are left out of the answer. New progress is told in an
-- event, at most once a second per job.
CREATE OR REPLACE FUNCTION ingot.renew(
    ids uuid[], fences bigint[], tenants uuid[], lease_lengths bigint[], percents double precision[], stages text[],
    workers text[] DEFAULT NULL
) RETURNS TABLE (place integer, expires_at bigint, cancel_requested boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = on
SET enable_nestloop = off
SET enable_mergejoin = off
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
DECLARE
    now bigint := ingot.clock();
BEGIN
    RETURN QUERY
    WITH asked AS MATERIALIZED (
        SELECT * FROM unnest(ids, fences, tenants, lease_lengths, percents, stages, workers)
            WITH ORDINALITY AS a (id, fence, tenant, lease, percent, stage, worker, place)
    ),
    held AS MATERIALIZED (
        SELECT l.*, a.lease, a.percent AS new_percent, a.stage AS new_stage, a.place,
            a.percent IS NOT NULL AND now - l.told_at >= 1000000 AS tells
        FROM (SELECT * FROM asked ORDER BY id) AS a CROSS JOIN LATERAL (
            SELECT l.* FROM ingot.leases AS l
            WHERE l.id = a.id AND l.fence = a.fence AND (a.tenant IS NULL OR a.tenant = l.tenant)
                AND ingot.is_of(l.worker_id, a.worker)
            FOR UPDATE
        ) AS l
    ),
    checked AS MATERIALIZED (
        SELECT CASE WHEN max(changed_by) > pg_current_xact_id() THEN ingot.begin_again() END FROM held
    ),
    renewed AS (
        UPDATE ingot.leases AS l SET
            expires_at = now + h.lease,
            percent = coalesce(h.new_percent, l.percent),
            stage = CASE WHEN h.new_percent IS NULL THEN l.stage ELSE h.new_stage END,
            told_at = CASE WHEN h.tells THEN now ELSE l.told_at END,
            changed_by = pg_current_xact_id()
        FROM checked CROSS JOIN held AS h WHERE l.id = h.id AND l.id = ANY (ARRAY(SELECT id FROM held))
        RETURNING h.place, l.expires_at, l.cancel_requested
    ),
    told AS (
        INSERT INTO ingot.events (tenant, position, at, entries)
        SELECT tenant, ingot.position(pg_current_xact_id()), now, '[' || string_agg(
            ingot.news('job.updated', ingot.ids(id), type, 'running', attempts, failures, crashes, fence, worker_id, NULL, NULL,
                NULL, cancel_requested, new_percent, new_stage), ',' ORDER BY place) || ']'
        FROM held WHERE tells GROUP BY tenant
        ON CONFLICT (tenant, position) DO UPDATE SET entries = ingot.then(events.entries, excluded.entries)
    )
    SELECT place::integer, expires_at, cancel_requested FROM renewed ORDER BY place;
END
$$;
