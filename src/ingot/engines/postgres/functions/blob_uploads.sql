-- An upload as JSON.
CREATE OR REPLACE FUNCTION ingot.upload_json(u ingot.uploads) RETURNS text
LANGUAGE sql STABLE
AS $$ SELECT row_to_json(u)::text $$;

-- Lock an attempt so that it cannot end before the transaction does, or refuse if it does not run under this fence.
CREATE OR REPLACE FUNCTION ingot.lock_attempt(of_tenant uuid, of_job uuid, of_fence bigint) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM FROM ingot.leases AS l WHERE l.id = of_job AND l.tenant = of_tenant AND l.fence = of_fence FOR KEY SHARE;
    IF NOT FOUND THEN
        PERFORM ingot.refuse('IN047', '');
    END IF;
END
$$;

-- Raise the refusal of a single change, if there is one.
CREATE OR REPLACE FUNCTION ingot.raise_refusal(refusal text) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    IF refusal IS NOT NULL THEN
        PERFORM ingot.refuse(left(refusal, 5), '', substr(refusal, 7));
    END IF;
END
$$;

-- Lock the recorded object store until the transaction ends, or refuse if it is not this one.
CREATE OR REPLACE FUNCTION ingot.lock_object_store(of_store text) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    current_id text;
BEGIN
    SELECT o.id INTO current_id FROM ingot.object_store AS o FOR KEY SHARE;
    IF current_id <> of_store THEN
        PERFORM ingot.refuse('IN051', '');
    END IF;
END
$$;

-- Insert the upload of a command. Its reservation is not counted here.
CREATE OR REPLACE FUNCTION ingot.insert_upload(command json, now bigint) RETURNS ingot.uploads
LANGUAGE sql VOLATILE
AS $$
    SELECT ingot.lock_object_store(command ->> 'store_id')
    WHERE command ->> 'storage_key' IS NOT NULL AND command ->> 'store_id' IS NOT NULL;
    INSERT INTO ingot.uploads AS u (
        tenant, id, state, epoch, owner, reserved, received, size, blob, sha256, content_type, original_name, key, if_match,
        job, fence, file, name, place, multipart, server, url_lifetime, created_at, expires_at
    )
    VALUES (
        (command ->> 'tenant')::uuid, (command ->> 'id')::uuid, 'open', 1, command ->> 'owner',
        (command ->> 'reserve')::bigint, 0, (command ->> 'size')::bigint, decode(command ->> 'blob_id', 'hex'),
        decode(command ->> 'sha256', 'hex'), command ->> 'content_type', command ->> 'original_name', command ->> 'key',
        command ->> 'if_match', (command ->> 'job_id')::uuid, (command ->> 'fence')::bigint, command ->> 'file',
        command ->> 'name', command ->> 'storage_key', command ->> 'multipart', (command ->> 'server')::uuid,
        coalesce((command ->> 'url_lifetime')::bigint, 0), now,
        now + (command ->> 'lifetime')::bigint
    )
    RETURNING u.*
$$;

-- Refuse a checkpoint with a new name if the job has `checkpoints_max` stored or unfinished ones; and delete this attempt's
-- finished uploads with that name: they are files of the job already. The caller holds `lock_usage`.
CREATE OR REPLACE FUNCTION ingot.prepare_checkpoint(of_job uuid, of_fence bigint, of_name text, checkpoints_max integer)
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    existing_names text[] := ARRAY(
        SELECT f.name FROM ingot.job_files AS f WHERE f.job = of_job AND f.kind = 'checkpoint'
        UNION
        SELECT u.name COLLATE "C" FROM ingot.uploads AS u WHERE u.job = of_job AND u.fence = of_fence AND u.fence IS NOT NULL
            AND u.file = 'checkpoint' AND u.state IN ('open', 'verifying')
    );
BEGIN
    IF of_name <> ALL (existing_names) AND cardinality(existing_names) >= checkpoints_max THEN
        PERFORM ingot.refuse('IN040', format('a job can have at most %s checkpoints', checkpoints_max));
    END IF;
    DELETE FROM ingot.uploads AS u WHERE u.job = of_job AND u.fence = of_fence AND u.fence IS NOT NULL
        AND u.file = 'checkpoint' AND u.name = of_name AND u.state = 'done';
END
$$;

-- Begin the upload of a command, and return it. A repeated command returns the existing upload. The number of outputs of an
-- attempt, of checkpoints of a job, and of unfinished uploads of a tenant is limited.
CREATE OR REPLACE FUNCTION ingot.begin_upload(
    command json, outputs_max integer, checkpoints_max integer, uploads_max integer DEFAULT {blobs.model.UNFINISHED_UPLOADS_MAX}
) RETURNS text
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
DECLARE
    now bigint;
    of_tenant uuid := command ->> 'tenant';
    of_owner text := command ->> 'owner';
    reserve bigint := command ->> 'reserve';
    quotas bigint[] := ARRAY[(command ->> 'owner_quota')::bigint];
    upload ingot.uploads;
BEGIN
    PERFORM ingot.expect_tenant(of_tenant);
    IF command ->> 'job_id' IS NOT NULL THEN
        PERFORM ingot.lock_attempt(of_tenant, (command ->> 'job_id')::uuid, (command ->> 'fence')::bigint);
    END IF;
    PERFORM ingot.lock_usage(ARRAY[of_tenant]);
    SELECT u.* INTO upload FROM ingot.uploads AS u WHERE u.tenant = of_tenant AND u.id = (command ->> 'id')::uuid;
    IF FOUND THEN
        RETURN ingot.upload_json(upload);
    END IF;
    IF command ->> 'file' = 'output' AND outputs_max <= (
        SELECT count(*) FROM ingot.uploads AS u WHERE u.job = (command ->> 'job_id')::uuid
            AND u.fence = (command ->> 'fence')::bigint AND u.fence IS NOT NULL AND u.file = 'output'
    ) THEN
        PERFORM ingot.refuse('IN040', format('an attempt can have at most %s outputs', outputs_max));
    END IF;
    IF command ->> 'file' = 'checkpoint' THEN
        PERFORM ingot.prepare_checkpoint(
            (command ->> 'job_id')::uuid, (command ->> 'fence')::bigint, command ->> 'name', checkpoints_max
        );
    END IF;
    PERFORM ingot.raise_refusal(ingot.key_refusal(of_tenant, command ->> 'key', command ->> 'if_match'));
    IF uploads_max <= (
        SELECT count(*) FROM (
            SELECT FROM ingot.uploads AS u WHERE u.tenant = of_tenant AND u.state IN ('open', 'verifying') LIMIT uploads_max
        ) AS u
    ) THEN
        PERFORM ingot.refuse('IN050', format('a tenant can have at most %s unfinished uploads', uploads_max));
    END IF;
    PERFORM ingot.raise_refusal((
        ingot.quota_refusals(ARRAY[of_tenant], ARRAY[of_owner], ARRAY[reserve], ARRAY[reserve], quotas, ARRAY[NULL::text])
    )[1]);
    now := ingot.clock();
    upload := ingot.insert_upload(command, now);
    PERFORM ingot.add_usage(ARRAY[of_tenant], ARRAY[of_owner], '{0}', ARRAY[reserve], '{0}', '{0}', quotas);
    RETURN ingot.upload_json(upload);
END
$$;

-- Lock an upload until the transaction ends, and return it.
CREATE OR REPLACE FUNCTION ingot.lock_upload(of_tenant uuid, of_id uuid) RETURNS ingot.uploads
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    upload ingot.uploads;
BEGIN
    PERFORM ingot.expect_tenant(of_tenant);
    SELECT u.* INTO upload FROM ingot.uploads AS u WHERE u.tenant = of_tenant AND u.id = of_id FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM ingot.refuse('IN044', '');
    END IF;
    RETURN upload;
END
$$;

-- Give an upload its next epoch, and return it.
CREATE OR REPLACE FUNCTION ingot.take_over_upload(of_tenant uuid, of_id uuid) RETURNS text
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
DECLARE
    upload ingot.uploads := ingot.lock_upload(of_tenant, of_id);
BEGIN
    IF upload.state <> 'open' THEN
        PERFORM ingot.refuse('IN065', '');
    END IF;
    UPDATE ingot.uploads AS u SET epoch = u.epoch + 1 WHERE u.tenant = of_tenant AND u.id = of_id RETURNING u.* INTO upload;
    RETURN ingot.upload_json(upload);
END
$$;

-- Update the progress of an upload, and return it.
CREATE OR REPLACE FUNCTION ingot.update_upload(
    of_tenant uuid, of_id uuid, of_epoch integer, lifetime bigint, new_received bigint, new_reserved bigint, is_complete boolean,
    owner_quota bigint, new_blob bytea, new_sha256 bytea
) RETURNS text
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
DECLARE
    now bigint := ingot.clock();
    upload ingot.uploads;
    more_bytes bigint[];
BEGIN
    IF new_reserved IS NOT NULL THEN
        PERFORM ingot.lock_usage(ARRAY[of_tenant]);
    END IF;
    upload := ingot.lock_upload(of_tenant, of_id);
    IF upload.state NOT IN ('open', 'verifying') THEN
        PERFORM ingot.refuse('IN065', '');
    ELSIF upload.epoch <> of_epoch THEN
        PERFORM ingot.refuse('IN046', '');
    END IF;
    IF new_reserved <> upload.reserved THEN
        more_bytes := ARRAY[new_reserved - upload.reserved];
        PERFORM ingot.raise_refusal((
            ingot.quota_refusals(ARRAY[of_tenant], ARRAY[upload.owner], more_bytes, more_bytes, ARRAY[owner_quota],
                ARRAY[NULL::text])
        )[1]);
        PERFORM ingot.add_usage(ARRAY[of_tenant], ARRAY[upload.owner], '{0}', more_bytes, '{0}', '{0}', ARRAY[owner_quota]);
    END IF;
    UPDATE ingot.uploads AS u SET
        received = coalesce(new_received, u.received), reserved = coalesce(new_reserved, u.reserved),
        blob = coalesce(new_blob, u.blob), sha256 = coalesce(new_sha256, u.sha256),
        state = CASE WHEN is_complete THEN 'verifying' ELSE u.state END,
        verifying_at = CASE WHEN is_complete THEN coalesce(u.verifying_at, now) ELSE u.verifying_at END,
        expires_at = now + lifetime
    WHERE u.tenant = of_tenant AND u.id = of_id RETURNING u.* INTO upload;
    RETURN ingot.upload_json(upload);
END
$$;

-- Put the objects of uploads that end into the trash, where their reservations count as deleted bytes. The caller holds
-- `lock_usage`.
CREATE OR REPLACE FUNCTION ingot.trash_uploads(ended ingot.uploads[], now bigint) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM ingot.trash_objects(array_agg(u.place), array_agg(u.multipart), array_agg(u.tenant), array_agg(u.owner),
        array_agg(u.reserved), array_agg(ingot.sent_until(u, now)))
    FROM unnest(ended) AS u WHERE u.place IS NOT NULL HAVING count(*) > 0;
END
$$;

-- Delete locked uploads: subtract their usage and reservations, add tombstones, and put their objects into the trash. The
-- caller holds `lock_usage`.
CREATE OR REPLACE FUNCTION ingot.drop_uploads(of_tenants uuid[], ids uuid[], now bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    deleted_uploads ingot.uploads[];
BEGIN
    WITH dropped AS (
        DELETE FROM ingot.uploads AS u USING unnest(of_tenants, ids) AS a (tenant, id)
        WHERE u.tenant = a.tenant AND u.id = a.id RETURNING u
    )
    SELECT array_agg(d.u) INTO deleted_uploads FROM dropped AS d;
    IF deleted_uploads IS NULL THEN
        RETURN 0;
    END IF;
    PERFORM ingot.trash_uploads(deleted_uploads, now);
    PERFORM ingot.bury(array_agg(u.tenant), array_agg(u.blob), array_agg(u.owner), now) FROM unnest(deleted_uploads) AS u
    WHERE u.blob IS NOT NULL AND u.refers AND u.state = 'done' HAVING count(*) > 0;
    PERFORM ingot.add_usage(
        array_agg(u.tenant), array_agg(u.owner),
        array_agg(CASE WHEN u.state = 'done' AND u.refers THEN -u.size ELSE 0 END), array_agg(-u.reserved),
        array_agg(0::bigint), array_agg(0::bigint)
    )
    FROM unnest(deleted_uploads) AS u;
    RETURN cardinality(deleted_uploads);
END
$$;

-- End an unfinished upload: with a code it is kept as failed for `lifetime`, without one it is deleted. A job that waits for
-- it is canceled and returned as by `queue_blocked`.
CREATE OR REPLACE FUNCTION ingot.end_upload(of_tenant uuid, of_id uuid, code text, lifetime bigint) RETURNS SETOF text
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
DECLARE
    now bigint;
    upload ingot.uploads;
BEGIN
    PERFORM ingot.expect_tenant(of_tenant);
    IF EXISTS (
        SELECT FROM ingot.uploads AS u WHERE u.tenant = of_tenant AND u.id = of_id AND u.job IS NOT NULL AND u.fence IS NULL
    ) THEN
        PERFORM ingot.lock_blocked_jobs(ARRAY[of_tenant]);
    END IF;
    PERFORM ingot.lock_usage(ARRAY[of_tenant]);
    now := ingot.clock();
    SELECT u.* INTO upload FROM ingot.uploads AS u
    WHERE u.tenant = of_tenant AND u.id = of_id AND u.state <> 'done' AND (code IS NULL OR u.state <> 'failed') FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    ELSIF code IS NULL THEN
        PERFORM ingot.drop_uploads(ARRAY[of_tenant], ARRAY[of_id], now);
    ELSE
        PERFORM ingot.trash_uploads(ARRAY[upload], now);
        UPDATE ingot.uploads AS u SET
            state = 'failed', error = code, reserved = 0, place = NULL, multipart = NULL, expires_at = now + lifetime
        WHERE u.tenant = of_tenant AND u.id = of_id;
        PERFORM ingot.add_usage(ARRAY[of_tenant], ARRAY[upload.owner], '{0}', ARRAY[-upload.reserved], '{0}', '{0}');
    END IF;
    IF upload.job IS NOT NULL AND upload.fence IS NULL THEN
        RETURN QUERY SELECT ingot.cancel_blocked(
            ARRAY[upload.job], ARRAY[ingot.missing_input_reason(upload.name, coalesce(code, 'the upload was aborted'))], now
        );
    END IF;
END
$$;

-- The error of a job that was canceled because an input was not uploaded.
CREATE OR REPLACE FUNCTION ingot.missing_input_reason(name text, reason text) RETURNS text
LANGUAGE sql IMMUTABLE
AS $$ SELECT format('the input %s was not uploaded: %s', name, reason) $$;

-- Delete up to `uploads_max` expired uploads and uploads of ended attempts. Uploads that another transaction has locked are
-- left for the next call. Jobs that wait for an upload are canceled and returned as by `queue_blocked`.
CREATE OR REPLACE FUNCTION ingot.sweep_uploads(uploads_max integer) RETURNS TABLE (swept bigint, canceled text[])
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
DECLARE
    now bigint := ingot.clock();
    of_tenants uuid[];
    ids uuid[];
    awaited_uploads ingot.uploads[];
BEGIN
    swept := 0;
    canceled := '{}';
    PERFORM ingot.fold_blob_totals(10000);
    SELECT array_agg(d.tenant), array_agg(d.id) INTO of_tenants, ids FROM (
        (
            SELECT u.tenant, u.id FROM ingot.uploads AS u
            WHERE u.expires_at <= now AND (u.fence IS NULL OR u.state <> 'done') ORDER BY u.expires_at LIMIT uploads_max
        )
        UNION
        (
            SELECT u.tenant, u.id FROM ingot.uploads AS u
            WHERE u.fence IS NOT NULL AND NOT EXISTS (SELECT FROM ingot.leases AS l WHERE l.id = u.job AND l.fence = u.fence)
            LIMIT uploads_max
        )
        LIMIT uploads_max
    ) AS d;
    IF ids IS NULL THEN
        RETURN NEXT;
        RETURN;
    END IF;
    PERFORM ingot.lock_blocked_jobs(ARRAY(
        SELECT u.tenant FROM unnest(of_tenants, ids) AS a (tenant, id)
        JOIN ingot.uploads AS u ON u.tenant = a.tenant AND u.id = a.id WHERE u.job IS NOT NULL AND u.fence IS NULL
    ));
    PERFORM ingot.lock_usage(of_tenants);
    SELECT array_agg((h.u).tenant), array_agg((h.u).id),
        array_agg(h.u) FILTER (WHERE (h.u).job IS NOT NULL AND (h.u).fence IS NULL AND (h.u).state IN ('open', 'verifying'))
    INTO of_tenants, ids, awaited_uploads FROM (
        SELECT u FROM unnest(of_tenants, ids) AS a (tenant, id)
        JOIN ingot.uploads AS u ON u.tenant = a.tenant AND u.id = a.id
        WHERE u.expires_at <= now AND (u.fence IS NULL OR u.state <> 'done') OR u.fence IS NOT NULL
            AND NOT EXISTS (SELECT FROM ingot.leases AS l WHERE l.id = u.job AND l.fence = u.fence)
        ORDER BY u.tenant, u.id FOR UPDATE OF u SKIP LOCKED
    ) AS h;
    IF ids IS NOT NULL THEN
        now := ingot.clock();
        swept := ingot.drop_uploads(of_tenants, ids, now);
        IF awaited_uploads IS NOT NULL THEN
            canceled := ARRAY(
                SELECT c FROM (
                    SELECT array_agg(w.job) AS jobs,
                        array_agg(ingot.missing_input_reason(w.name, 'the upload expired')) AS reasons
                    FROM unnest(awaited_uploads) AS w
                ) AS w CROSS JOIN LATERAL ingot.cancel_blocked(w.jobs, w.reasons, now) AS c
            );
        END IF;
    END IF;
    RETURN NEXT;
END
$$;

-- Uploads that wait for verification, longest waiting first, as JSON.
CREATE OR REPLACE FUNCTION ingot.list_verifying(uploads_max integer) RETURNS SETOF text
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
    SELECT ingot.upload_json(u) FROM ingot.uploads AS u WHERE u.state = 'verifying' ORDER BY u.verifying_at LIMIT uploads_max
$$;
