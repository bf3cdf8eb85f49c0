-- Finish uploads, all different. Returns each upload by the ordinal of its parameters, or a refusal; 'again' means that
-- another upload of this call set the same key. Finishing an upload again with the same bytes returns the same. Rows without
-- an ordinal are jobs that are queued now, as `queue_blocked` returns them.
CREATE OR REPLACE FUNCTION ingot.finish_uploads(
    of_tenants uuid[], ids uuid[], epochs integer[], lifetimes bigint[], owner_quotas bigint[],
    digests bytea[], sha256s bytea[], sizes bigint[], storage_keys text[], inlines bytea[], all_checksums bytea[],
    etags text[] DEFAULT NULL
) RETURNS TABLE (ordinal bigint, refusal text, upload text)
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
    refusals text[];
    owners text[];
    keys text[];
    jobs uuid[];
    file_names text[];
    kinds text[];
    waiting_jobs uuid[];
    content_types text[];
    original_names text[];
    reserved bigint[];
    sent_untils bigint[];
BEGIN
    waiting_jobs := ARRAY(
        SELECT u.job FROM unnest(of_tenants, ids) AS a (tenant, id)
        JOIN ingot.uploads AS u ON u.tenant = a.tenant AND u.id = a.id WHERE u.job IS NOT NULL AND u.fence IS NULL
    );
    IF cardinality(waiting_jobs) > 0 THEN
        PERFORM ingot.lock_blocked_jobs(of_tenants);
        PERFORM FROM ingot.jobs AS j WHERE j.id = ANY (waiting_jobs) ORDER BY j.id FOR NO KEY UPDATE;
    END IF;
    -- The locks keep running attempts from ending.
    PERFORM FROM ingot.leases AS l WHERE l.id = ANY (ARRAY(
        SELECT u.job FROM unnest(of_tenants, ids) AS a (tenant, id)
        JOIN ingot.uploads AS u ON u.tenant = a.tenant AND u.id = a.id WHERE u.fence IS NOT NULL
    )) ORDER BY l.id FOR KEY SHARE;
    PERFORM ingot.lock_usage(of_tenants);
    PERFORM FROM unnest(of_tenants, ids) AS a (tenant, id)
    JOIN ingot.uploads AS u ON u.tenant = a.tenant AND u.id = a.id ORDER BY u.tenant, u.id FOR UPDATE OF u;
    now := ingot.clock();
    SELECT array_agg(CASE
            WHEN a.refusal IS NULL AND a.key IS NOT NULL AND a.key_rank > 1 THEN 'again' ELSE a.refusal
        END ORDER BY a.ordinal), array_agg(a.owner ORDER BY a.ordinal), array_agg(a.key ORDER BY a.ordinal),
        array_agg(a.job ORDER BY a.ordinal), array_agg(a.file ORDER BY a.ordinal), array_agg(a.name ORDER BY a.ordinal),
        array_agg(a.content_type ORDER BY a.ordinal), array_agg(a.original_name ORDER BY a.ordinal),
        array_agg(a.reserved ORDER BY a.ordinal), array_agg(a.sent_until ORDER BY a.ordinal)
    INTO refusals, owners, keys, jobs, kinds, file_names, content_types, original_names, reserved, sent_untils
    FROM (
        SELECT a.*, row_number() OVER (PARTITION BY a.tenant, a.key, a.refusal IS NULL ORDER BY a.ordinal) AS key_rank
        FROM (
            SELECT a.ordinal, a.tenant, u.owner, u.key, u.job, u.file, u.name, u.content_type, u.original_name, u.reserved,
                CASE WHEN u.place = a.storage_key THEN ingot.sent_until(u, now) ELSE 0 END AS sent_until, CASE
                WHEN NOT EXISTS (SELECT FROM ingot.tenants AS t WHERE t.id = a.tenant) THEN 'IN006'
                WHEN u.id IS NULL THEN 'IN044'
                WHEN u.state = 'done' AND u.blob = a.digest THEN 'same'
                WHEN u.state IN ('done', 'failed') THEN 'IN065'
                WHEN a.epoch <> u.epoch THEN 'IN046'
                WHEN u.fence IS NOT NULL AND NOT EXISTS (
                    SELECT FROM ingot.leases AS l WHERE l.id = u.job AND l.tenant = u.tenant AND l.fence = u.fence
                ) THEN 'IN047'
                ELSE ingot.key_refusal(u.tenant, u.key, u.if_match)
            END AS refusal
            FROM unnest(of_tenants, ids, epochs, digests, storage_keys)
                WITH ORDINALITY AS a (tenant, id, epoch, digest, storage_key, ordinal)
            LEFT JOIN ingot.uploads AS u ON u.tenant = a.tenant AND u.id = a.id
        ) AS a
    ) AS a;
    refusals := ingot.accept_blobs(
        refusals, of_tenants, owners, ids, keys, jobs, kinds, file_names, digests, sha256s, sizes, storage_keys, inlines,
        all_checksums, coalesce(etags, array_fill(NULL::text, ARRAY[cardinality(ids)])), sent_untils, content_types,
        original_names, reserved, owner_quotas, now
    );
    PERFORM ingot.trash_objects(array_agg(u.place), array_agg(u.multipart), array_agg(u.tenant), array_agg(u.owner),
        array_agg(a.size), array_agg(ingot.sent_until(u, now)))
    FROM unnest(refusals, of_tenants, ids, digests, sizes) AS a (refusal, tenant, id, digest, size)
    JOIN ingot.uploads AS u ON u.tenant = a.tenant AND u.id = a.id
    JOIN ingot.blobs AS b ON b.holder = a.tenant AND b.digest = a.digest
    WHERE a.refusal IS NULL AND u.place IS DISTINCT FROM b.place HAVING count(*) > 0;
    UPDATE ingot.trash AS o SET multipart = u.multipart
    FROM unnest(refusals, of_tenants, ids) AS a (refusal, tenant, id)
    JOIN ingot.uploads AS u ON u.tenant = a.tenant AND u.id = a.id
    WHERE a.refusal IS NULL AND o.place = u.place AND u.multipart IS NOT NULL;
    WITH finished AS MATERIALIZED (
        SELECT a.* FROM unnest(refusals, of_tenants, ids, lifetimes, digests, sha256s, sizes)
            AS a (refusal, tenant, id, lifetime, digest, sha256, size)
        WHERE a.refusal IS NULL
    )
    UPDATE ingot.uploads AS u SET
        state = 'done', blob = f.digest, sha256 = f.sha256, size = f.size, received = f.size, reserved = 0, place = NULL,
        multipart = NULL, done_at = now, expires_at = now + f.lifetime
    FROM finished AS f WHERE u.tenant = f.tenant AND u.id = f.id;
    IF kinds && '{input,log,checkpoint}' THEN
        PERFORM ingot.store_upload_as_file(u, now) FROM unnest(refusals, of_tenants, ids, kinds) AS a (refusal, tenant, id, kind)
        JOIN ingot.uploads AS u ON u.tenant = a.tenant AND u.id = a.id
        WHERE a.refusal IS NULL AND a.kind IN ('input', 'log', 'checkpoint');
        RETURN QUERY SELECT NULL::bigint, NULL, q FROM ingot.queue_blocked(waiting_jobs, now) AS q;
    END IF;
    -- The object of an upload that was finished before is not needed.
    INSERT INTO ingot.trash (place)
    SELECT DISTINCT a.storage_key
    FROM unnest(refusals, of_tenants, digests, storage_keys) AS a (refusal, tenant, digest, storage_key)
    LEFT JOIN ingot.blobs AS b ON b.holder = a.tenant AND b.digest = a.digest
    WHERE a.refusal = 'same' AND a.storage_key IS NOT NULL AND a.storage_key IS DISTINCT FROM b.place
    ON CONFLICT DO NOTHING;
    RETURN QUERY
    SELECT a.ordinal, nullif(a.refusal, 'same'),
        CASE WHEN a.refusal IS NULL OR a.refusal = 'same' THEN ingot.upload_json(u) END
    FROM unnest(refusals, of_tenants, ids) WITH ORDINALITY AS a (refusal, tenant, id, ordinal)
    LEFT JOIN ingot.uploads AS u ON u.tenant = a.tenant AND u.id = a.id;
END
$$;
