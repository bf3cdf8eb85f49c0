-- Renew the leases with these fences; others are left out of the result. New progress is published as an event, at most
-- once a second per job.
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
    WITH input AS MATERIALIZED (
        SELECT * FROM unnest(ids, fences, tenants, lease_lengths, percents, stages, workers)
            WITH ORDINALITY AS a (id, fence, tenant, lease, percent, stage, worker, place)
    ),
    locked_leases AS MATERIALIZED (
        SELECT l.*, a.lease, a.percent AS new_percent, a.stage AS new_stage, a.place,
            a.percent IS NOT NULL AND now - l.told_at >= 1000000 AS adds_event
        FROM (SELECT * FROM input ORDER BY id) AS a CROSS JOIN LATERAL (
            SELECT l.* FROM ingot.leases AS l
            WHERE l.id = a.id AND l.fence = a.fence AND (a.tenant IS NULL OR a.tenant = l.tenant)
                AND ingot.matches_worker(l.worker_id, a.worker)
            FOR UPDATE
        ) AS l
    ),
    checked AS MATERIALIZED (
        SELECT CASE WHEN max(changed_by) > pg_current_xact_id() THEN ingot.retry_transaction() END FROM locked_leases
    ),
    renewed AS (
        UPDATE ingot.leases AS l SET
            expires_at = now + h.lease,
            percent = coalesce(h.new_percent, l.percent),
            stage = CASE WHEN h.new_percent IS NULL THEN l.stage ELSE h.new_stage END,
            told_at = CASE WHEN h.adds_event THEN now ELSE l.told_at END,
            changed_by = pg_current_xact_id()
        FROM checked CROSS JOIN locked_leases AS h WHERE l.id = h.id AND l.id = ANY (ARRAY(SELECT id FROM locked_leases))
        RETURNING h.place, l.expires_at, l.cancel_requested
    ),
    added_events AS (
        INSERT INTO ingot.events (tenant, position, at, entries)
        SELECT tenant, ingot.event_position(pg_current_xact_id()), now, '[' || string_agg(
            ingot.job_event_entry('job.updated', ingot.quoted_id(id), type, 'running', attempts, failures, crashes, fence,
                worker_id, NULL, NULL, NULL, cancel_requested, new_percent, new_stage), ',' ORDER BY place) || ']'
        FROM locked_leases WHERE adds_event GROUP BY tenant
        ON CONFLICT (tenant, position) DO UPDATE SET entries = ingot.join_entries(events.entries, excluded.entries)
    )
    SELECT place::integer, expires_at, cancel_requested FROM renewed ORDER BY place;
END
$$;
