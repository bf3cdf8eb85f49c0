-- The number of jobs of each tenant by status, from counts and deltas, and when its longest waiting ready job became due.
-- The oldest `tenants_max` tenants have a row each; all others share a row without a slug. Due times come from the first
-- job of each priority in up to `lanes_max` lanes; the first lane of each tenant and type comes before the second of any. Of
-- a tenant with very many types, only some are searched, so that it does not slow the metrics of all.
CREATE OR REPLACE FUNCTION ingot.queue_depths(tenants_max integer, lanes_max integer)
RETURNS TABLE (slug text, counts text, oldest bigint, now bigint)
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
    tenant_counts_max CONSTANT integer := 6000;  -- Six for each of a thousand types.
    last_tenant uuid := (
        SELECT t.id FROM (SELECT t.id FROM ingot.tenants AS t ORDER BY t.id LIMIT tenants_max) AS t ORDER BY t.id DESC LIMIT 1
    );
BEGIN
    RETURN QUERY
    WITH RECURSIVE tenant_counts AS MATERIALIZED (
        SELECT d.tenant, d.status, sum(d.jobs) AS jobs FROM (
            SELECT c.tenant, c.status, c.jobs FROM ingot.count_totals AS c
            UNION ALL
            SELECT c.tenant, c.status, c.jobs FROM ingot.count_deltas AS c
        ) AS d
        WHERE NOT EXISTS (SELECT FROM ingot.removed_tenants AS r WHERE r.tenant = d.tenant)
        GROUP BY d.tenant, d.status
    ),
    queued_types AS MATERIALIZED (
        SELECT c.tenant, t.type FROM tenant_counts AS c CROSS JOIN LATERAL (
            SELECT DISTINCT d.type FROM (
                (SELECT d.type, d.status, d.jobs FROM ingot.counts AS d WHERE d.tenant = c.tenant LIMIT tenant_counts_max)
                UNION ALL
                SELECT d.type, d.status, d.jobs FROM ingot.count_deltas AS d WHERE d.tenant = c.tenant
            ) AS d
            WHERE d.status = 'queued' AND d.jobs > 0
        ) AS t
        WHERE c.status = 'queued' AND c.jobs > 0
    ),
    lanes AS (
        SELECT c.tenant, c.type, (
            SELECT r.limit_key FROM ingot.ready AS r WHERE r.type = c.type AND r.tenant = c.tenant ORDER BY r.limit_key LIMIT 1
        ) AS limit_key
        FROM queued_types AS c
        UNION ALL
        SELECT l.tenant, l.type, (
            SELECT r.limit_key FROM ingot.ready AS r
            WHERE r.type = l.type AND r.tenant = l.tenant AND r.limit_key > l.limit_key ORDER BY r.limit_key LIMIT 1
        )
        FROM lanes AS l WHERE l.limit_key IS NOT NULL
    ),
    heads AS (
        SELECT l.tenant, r.run_at FROM (SELECT * FROM lanes LIMIT lanes_max) AS l
        CROSS JOIN generate_series(1, 5) AS p (priority) CROSS JOIN LATERAL (
            SELECT r.run_at FROM ingot.ready AS r
            WHERE r.type = l.type AND r.tenant = l.tenant AND r.limit_key = l.limit_key AND r.priority = p.priority
            ORDER BY r.run_at LIMIT 1
        ) AS r
    )
    SELECT (SELECT t.slug FROM ingot.tenants AS t WHERE t.id = d.tenant),
        json_object_agg(d.status, d.jobs) FILTER (WHERE d.status IS NOT NULL)::text, min(d.run_at), ingot.clock()
    FROM (
        SELECT CASE WHEN c.tenant <= last_tenant THEN c.tenant END AS tenant, c.status, sum(c.jobs) AS jobs,
            NULL::bigint AS run_at
        FROM tenant_counts AS c GROUP BY 1, 2
        UNION ALL
        SELECT CASE WHEN h.tenant <= last_tenant THEN h.tenant END, NULL, NULL, min(h.run_at) FROM heads AS h GROUP BY 1
    ) AS d
    GROUP BY d.tenant;
END
$$;
