-- Finish uploads; no two of one call are the same. Answers by place each as it is then, or why it is what it was; 'again' is
-- one whose key another of this call has set. Finished again with the same bytes it answers the same. Rows without a place
-- tell of jobs that waited for nothing else and are queued now, as `queue_blocked` does.
CREATE OR REPLACE FUNCTION ingot.finish_uploads(
    of_tenants uuid[], ids uuid[], epochs integer[], keeps bigint[], owner_quotas bigint[],
    digests bytea[], shas bytea[], sizes bigint[], new_places text[], inlines bytea[], all_checks bytea[]
) RETURNS TABLE (place bigint, refusal text, upload text)
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
    names text[];
    jobs uuid[];
    files text[];
    kinds text[];
    moved uuid[];
    content_types text[];
    original_names text[];
    reserved bigint[];
BEGIN
    moved := ARRAY(
        SELECT u.job FROM unnest(of_tenants, ids) AS a (tenant, id)
        JOIN ingot.uploads AS u ON u.tenant = a.tenant AND u.id = a.id WHERE u.job IS NOT NULL AND u.fence IS NULL
    );
    IF cardinality(moved) > 0 THEN
        PERFORM ingot.lock_blocked_of(of_tenants);
        PERFORM FROM ingot.jobs AS j WHERE j.id = ANY (moved) ORDER BY j.id FOR NO KEY UPDATE;
    END IF;
    -- An attempt that runs now does so until this is done.
    PERFORM FROM ingot.leases AS l WHERE l.id = ANY (ARRAY(
        SELECT u.job FROM unnest(of_tenants, ids) AS a (tenant, id)
        JOIN ingot.uploads AS u ON u.tenant = a.tenant AND u.id = a.id WHERE u.fence IS NOT NULL
    )) ORDER BY l.id FOR KEY SHARE;
    PERFORM ingot.lock_usage(of_tenants);
    PERFORM FROM unnest(of_tenants, ids) AS a (tenant, id)
    JOIN ingot.uploads AS u ON u.tenant = a.tenant AND u.id = a.id ORDER BY u.tenant, u.id FOR UPDATE OF u;
    now := ingot.clock();
    SELECT array_agg(CASE
            WHEN a.refusal IS NULL AND a.key IS NOT NULL AND a.turn > 1 THEN 'again' ELSE a.refusal
        END ORDER BY a.place), array_agg(a.owner ORDER BY a.place), array_agg(a.key ORDER BY a.place),
        array_agg(a.job ORDER BY a.place), array_agg(a.file ORDER BY a.place), array_agg(a.name ORDER BY a.place),
        array_agg(a.content_type ORDER BY a.place), array_agg(a.original_name ORDER BY a.place),
        array_agg(a.reserved ORDER BY a.place)
    INTO refusals, owners, names, jobs, kinds, files, content_types, original_names, reserved
    FROM (
        SELECT a.*, row_number() OVER (PARTITION BY a.tenant, a.key, a.refusal IS NULL ORDER BY a.place) AS turn
        FROM (
            SELECT a.place, a.tenant, u.owner, u.key, u.job, u.file, u.name, u.content_type, u.original_name, u.reserved, CASE
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
            FROM unnest(of_tenants, ids, epochs, digests) WITH ORDINALITY AS a (tenant, id, epoch, digest, place)
            LEFT JOIN ingot.uploads AS u ON u.tenant = a.tenant AND u.id = a.id
        ) AS a
    ) AS a;
    refusals := ingot.take_in(
        refusals, of_tenants, owners, ids, names, jobs, kinds, files, digests, shas, sizes, new_places, inlines, all_checks,
        content_types, original_names, reserved, owner_quotas, now
    );
    WITH done AS MATERIALIZED (
        SELECT a.*, u.blob AS announced, u.place AS old_place, u.multipart AS old_multipart, b.place AS blob_place
        FROM unnest(refusals, of_tenants, ids, keeps, digests, shas, sizes)
            AS a (refusal, tenant, id, keep, digest, sha256, size)
        JOIN ingot.uploads AS u ON u.tenant = a.tenant AND u.id = a.id
        JOIN ingot.blobs AS b ON b.digest = a.digest
        WHERE a.refusal IS NULL
    ),
    thrown AS (
        INSERT INTO ingot.trash (place, multipart) SELECT d.old_place, d.old_multipart FROM done AS d
        WHERE d.old_place IS NOT NULL AND d.old_place IS DISTINCT FROM d.blob_place
        ON CONFLICT (place) DO UPDATE SET multipart = excluded.multipart
    ),
    buried AS (
        INSERT INTO ingot.tombstones (digest, at) SELECT d.announced, now FROM done AS d WHERE d.announced <> d.digest
    )
    UPDATE ingot.uploads AS u SET
        state = 'done', blob = d.digest, sha256 = d.sha256, size = d.size, received = d.size, reserved = 0, place = NULL,
        multipart = NULL, done_at = now, expires_at = now + d.keep
    FROM done AS d WHERE u.tenant = d.tenant AND u.id = d.id;
    IF kinds && '{input,log,checkpoint}' THEN
        PERFORM ingot.file_upload(u, now) FROM unnest(refusals, of_tenants, ids, kinds) AS a (refusal, tenant, id, kind)
        JOIN ingot.uploads AS u ON u.tenant = a.tenant AND u.id = a.id
        WHERE a.refusal IS NULL AND a.kind IN ('input', 'log', 'checkpoint');
        RETURN QUERY SELECT NULL::bigint, NULL, q FROM ingot.queue_blocked(moved, now) AS q;
    END IF;
    -- What was brought once more for one that was done is not needed.
    INSERT INTO ingot.trash (place)
    SELECT DISTINCT a.place FROM unnest(refusals, digests, new_places) AS a (refusal, digest, place)
    LEFT JOIN ingot.blobs AS b ON b.digest = a.digest
    WHERE a.refusal = 'same' AND a.place IS NOT NULL AND a.place IS DISTINCT FROM b.place
    ON CONFLICT DO NOTHING;
    RETURN QUERY
    SELECT a.place, nullif(a.refusal, 'same'),
        CASE WHEN a.refusal IS NULL OR a.refusal = 'same' THEN ingot.upload_told(u) END
    FROM unnest(refusals, of_tenants, ids) WITH ORDINALITY AS a (refusal, tenant, id, place)
    LEFT JOIN ingot.uploads AS u ON u.tenant = a.tenant AND u.id = a.id;
END
$$;
