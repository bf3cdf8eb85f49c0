-- Append to the logs of attempts that run under these fences; others are left out of the result. Text before the end of
-- the log, according to its offset, was stored before and is skipped. Each log keeps its last `chars_kept` characters.
CREATE OR REPLACE FUNCTION ingot.append_logs(
    ids uuid[], fences bigint[], tenants uuid[], texts text[], offsets bigint[], chars_kept bigint,
    workers text[]
) RETURNS TABLE (place integer, ends bigint)
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
    places integer[];
    lease_tenants uuid[];
BEGIN
    -- The lock keeps an attempt from ending. The next statement sees what others wrote while we waited for it.
    SELECT array_agg(l.place), array_agg(l.tenant) INTO places, lease_tenants FROM (
        SELECT a.place::integer, l.tenant
        FROM (
            SELECT * FROM unnest(ids, fences, tenants, workers)
                WITH ORDINALITY AS a (id, fence, tenant, worker, place) ORDER BY id
        ) AS a CROSS JOIN LATERAL (
            SELECT l.tenant FROM ingot.leases AS l
            WHERE l.id = a.id AND l.fence = a.fence AND (a.tenant IS NULL OR a.tenant = l.tenant)
                AND ingot.matches_worker(l.worker_id, a.worker)
            FOR NO KEY UPDATE
        ) AS l
    ) AS l;
    RETURN QUERY
    WITH input AS MATERIALIZED (
        SELECT h.place, ids[h.place] AS job, fences[h.place] AS fence, h.tenant, texts[h.place] AS text,
            e.log_end, coalesce(offsets[h.place], e.log_end) AS text_start
        FROM unnest(places, lease_tenants) AS h (place, tenant) CROSS JOIN LATERAL (
            SELECT coalesce((
                SELECT g.start + g.size FROM ingot.logs AS g
                WHERE g.job = ids[h.place] AND g.fence = fences[h.place] ORDER BY g.start DESC LIMIT 1
            ), 0) AS log_end
        ) AS e
    ),
    new_parts AS MATERIALIZED (
        SELECT a.place, a.job, a.fence, a.tenant, greatest(a.text_start, a.log_end) AS start,
            substr(a.text, 1 + least(greatest(a.log_end - a.text_start, 0), length(a.text))::integer) AS text
        FROM input AS a
    ),
    added_parts AS (
        INSERT INTO ingot.logs (job, fence, start, size, tenant, text)
        SELECT job, fence, start, length(text), tenant, text FROM new_parts WHERE text <> ''
    ),
    deleted_parts AS (
        DELETE FROM ingot.logs AS g USING new_parts AS f
        WHERE g.job = f.job AND g.fence = f.fence AND f.text <> ''
            AND g.start < f.start + length(f.text) - chars_kept AND g.start + g.size <= f.start + length(f.text) - chars_kept
    )
    SELECT f.place, CASE WHEN f.text = '' THEN a.log_end ELSE f.start + length(f.text) END
    FROM new_parts AS f JOIN input AS a ON a.place = f.place;
END
$$;
