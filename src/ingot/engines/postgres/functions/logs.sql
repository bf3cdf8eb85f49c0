-- Append to the logs of the attempts that are held under these fences; the others are left out of the answer. An offset
-- before the end of a log says how much of the text is known. Of each log the last so many characters are kept.
CREATE OR REPLACE FUNCTION ingot.append_logs(
    ids uuid[], fences bigint[], tenants uuid[], texts text[], offsets bigint[], kept bigint,
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
    held integer[];
    owners uuid[];
BEGIN
    -- An attempt stays as it is until we are done. The next statement sees what others wrote while we waited for it.
    SELECT array_agg(l.place), array_agg(l.tenant) INTO held, owners FROM (
        SELECT a.place::integer, l.tenant
        FROM (
            SELECT * FROM unnest(ids, fences, tenants, workers)
                WITH ORDINALITY AS a (id, fence, tenant, worker, place) ORDER BY id
        ) AS a CROSS JOIN LATERAL (
            SELECT l.tenant FROM ingot.leases AS l
            WHERE l.id = a.id AND l.fence = a.fence AND (a.tenant IS NULL OR a.tenant = l.tenant)
                AND ingot.is_of(l.worker_id, a.worker)
            FOR NO KEY UPDATE
        ) AS l
    ) AS l;
    RETURN QUERY
    WITH asked AS MATERIALIZED (
        SELECT h.place, ids[h.place] AS job, fences[h.place] AS fence, h.tenant, texts[h.place] AS text,
            e.until, coalesce(offsets[h.place], e.until) AS begins
        FROM unnest(held, owners) AS h (place, tenant) CROSS JOIN LATERAL (
            SELECT coalesce((
                SELECT g.start + g.size FROM ingot.logs AS g
                WHERE g.job = ids[h.place] AND g.fence = fences[h.place] ORDER BY g.start DESC LIMIT 1
            ), 0) AS until
        ) AS e
    ),
    fresh AS MATERIALIZED (
        SELECT a.place, a.job, a.fence, a.tenant, greatest(a.begins, a.until) AS start,
            substr(a.text, 1 + least(greatest(a.until - a.begins, 0), length(a.text))::integer) AS text
        FROM asked AS a
    ),
    written AS (
        INSERT INTO ingot.logs (job, fence, start, size, tenant, text)
        SELECT job, fence, start, length(text), tenant, text FROM fresh WHERE text <> ''
    ),
    trimmed AS (
        DELETE FROM ingot.logs AS g USING fresh AS f
        WHERE g.job = f.job AND g.fence = f.fence AND f.text <> ''
            AND g.start < f.start + length(f.text) - kept AND g.start + g.size <= f.start + length(f.text) - kept
    )
    SELECT f.place, CASE WHEN f.text = '' THEN a.until ELSE f.start + length(f.text) END
    FROM fresh AS f JOIN asked AS a ON a.place = f.place;
END
$$;
