-- An upload as JSON.
CREATE OR REPLACE FUNCTION ingot.upload_told(u ingot.uploads) RETURNS text
LANGUAGE sql STABLE
AS $$ SELECT row_to_json(u)::text $$;

-- Keep an attempt from ending until the transaction ends, or refuse one that does not run under this fence.
CREATE OR REPLACE FUNCTION ingot.hold_attempt(of_tenant uuid, of_job uuid, of_fence bigint) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM FROM ingot.leases AS l WHERE l.id = of_job AND l.tenant = of_tenant AND l.fence = of_fence FOR KEY SHARE;
    IF NOT FOUND THEN
        PERFORM ingot.refuse('IN047', '');
    END IF;
END
$$;

-- Raise what stands in the way of one change.
CREATE OR REPLACE FUNCTION ingot.expect_none(refusal text) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    IF refusal IS NOT NULL THEN
        PERFORM ingot.refuse(left(refusal, 5), '', substr(refusal, 7));
    END IF;
END
$$;

-- Keep objects from having another store until the transaction ends, or refuse when they have another than this.
CREATE OR REPLACE FUNCTION ingot.hold_objects(of_store text) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    known text;
BEGIN
    SELECT o.id INTO known FROM ingot.object_store AS o FOR KEY SHARE;
    IF known <> of_store THEN
        PERFORM ingot.refuse('IN051', '');
    END IF;
END
$$;

-- A new upload, as a command says. What it sets aside is not counted here.
CREATE OR REPLACE FUNCTION ingot.insert_upload(command json, now bigint) RETURNS ingot.uploads
LANGUAGE sql VOLATILE
AS $$
    SELECT ingot.hold_objects(command ->> 'store_id')
    WHERE command ->> 'storage_key' IS NOT NULL AND command ->> 'store_id' IS NOT NULL;
    INSERT INTO ingot.uploads AS u (
        tenant, id, state, epoch, owner, reserved, received, size, blob, sha256, content_type, original_name, key, if_match,
        job, fence, file, name, place, multipart, created_at, expires_at
    )
    VALUES (
        (command ->> 'tenant')::uuid, (command ->> 'id')::uuid, 'open', 1, command ->> 'owner',
        (command ->> 'reserve')::bigint, 0, (command ->> 'size')::bigint, decode(command ->> 'blob_id', 'hex'),
        decode(command ->> 'sha256', 'hex'), command ->> 'content_type', command ->> 'original_name', command ->> 'key',
        command ->> 'if_match', (command ->> 'job_id')::uuid, (command ->> 'fence')::bigint, command ->> 'file',
        command ->> 'name', command ->> 'storage_key', command ->> 'multipart', now, now + (command ->> 'lifetime')::bigint
    )
    RETURNING u.*
$$;

-- Refuse one more checkpoint of a job when those are enough, with those on their way, unless one has its name; and forget the
-- uploads of those that this attempt has finished under that: they are files of the job. The tenant is held.
CREATE OR REPLACE FUNCTION ingot.take_checkpoint(of_job uuid, of_fence bigint, of_name text, checkpoints_max integer) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    known text[] := ARRAY(
        SELECT f.name FROM ingot.job_files AS f WHERE f.job = of_job AND f.kind = 'checkpoint'
        UNION
        SELECT u.name COLLATE "C" FROM ingot.uploads AS u WHERE u.job = of_job AND u.fence = of_fence AND u.fence IS NOT NULL
            AND u.file = 'checkpoint' AND u.state IN ('open', 'verifying')
    );
BEGIN
    IF of_name <> ALL (known) AND cardinality(known) >= checkpoints_max THEN
        PERFORM ingot.refuse('IN040', format('the job has %s checkpoints; there are no more than that', checkpoints_max));
    END IF;
    DELETE FROM ingot.uploads AS u WHERE u.job = of_job AND u.fence = of_fence AND u.fence IS NOT NULL
        AND u.file = 'checkpoint' AND u.name = of_name AND u.state = 'done';
END
$$;

-- Begin an upload as the command says, and answer it; the same again answers what is there. An attempt has so many outputs
-- at most, and a job so many checkpoints.
CREATE OR REPLACE FUNCTION ingot.begin_upload(command json, outputs_max integer, checkpoints_max integer) RETURNS text
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
    made ingot.uploads;
BEGIN
    PERFORM ingot.expect_tenant(of_tenant);
    IF command ->> 'job_id' IS NOT NULL THEN
        PERFORM ingot.hold_attempt(of_tenant, (command ->> 'job_id')::uuid, (command ->> 'fence')::bigint);
    END IF;
    PERFORM ingot.lock_usage(ARRAY[of_tenant]);
    SELECT u.* INTO made FROM ingot.uploads AS u WHERE u.tenant = of_tenant AND u.id = (command ->> 'id')::uuid;
    IF FOUND THEN
        RETURN ingot.upload_told(made);
    END IF;
    IF command ->> 'file' = 'output' AND outputs_max <= (
        SELECT count(*) FROM ingot.uploads AS u WHERE u.job = (command ->> 'job_id')::uuid
            AND u.fence = (command ->> 'fence')::bigint AND u.fence IS NOT NULL AND u.file = 'output'
    ) THEN
        PERFORM ingot.refuse('IN040', format('the attempt has %s outputs; there are no more than that', outputs_max));
    END IF;
    IF command ->> 'file' = 'checkpoint' THEN
        PERFORM ingot.take_checkpoint(
            (command ->> 'job_id')::uuid, (command ->> 'fence')::bigint, command ->> 'name', checkpoints_max
        );
    END IF;
    PERFORM ingot.expect_none(ingot.key_refusal(of_tenant, command ->> 'key', command ->> 'if_match'));
    PERFORM ingot.expect_none((
        ingot.misfits(ARRAY[of_tenant], ARRAY[of_owner], ARRAY[reserve], ARRAY[reserve], quotas, ARRAY[NULL::text])
    )[1]);
    now := ingot.clock();
    made := ingot.insert_upload(command, now);
    PERFORM ingot.add_usage(ARRAY[of_tenant], ARRAY[of_owner], '{0}', ARRAY[reserve], '{0}', '{0}', quotas);
    RETURN ingot.upload_told(made);
END
$$;

-- An upload that nobody else changes until the end of the transaction.
CREATE OR REPLACE FUNCTION ingot.lock_upload(of_tenant uuid, of_id uuid) RETURNS ingot.uploads
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    known ingot.uploads;
BEGIN
    PERFORM ingot.expect_tenant(of_tenant);
    SELECT u.* INTO known FROM ingot.uploads AS u WHERE u.tenant = of_tenant AND u.id = of_id FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM ingot.refuse('IN044', '');
    END IF;
    RETURN known;
END
$$;

-- Give an upload the next epoch, and answer it.
CREATE OR REPLACE FUNCTION ingot.take_upload(of_tenant uuid, of_id uuid) RETURNS text
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
    known ingot.uploads := ingot.lock_upload(of_tenant, of_id);
BEGIN
    IF known.state <> 'open' THEN
        PERFORM ingot.refuse('IN065', '');
    END IF;
    UPDATE ingot.uploads AS u SET epoch = u.epoch + 1 WHERE u.tenant = of_tenant AND u.id = of_id RETURNING u.* INTO known;
    RETURN ingot.upload_told(known);
END
$$;

-- Keep what is known of an upload, and answer it.
CREATE OR REPLACE FUNCTION ingot.note_upload(
    of_tenant uuid, of_id uuid, of_epoch integer, keep bigint, new_received bigint, new_reserved bigint, verifying boolean,
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
    known ingot.uploads;
    more bigint[];
BEGIN
    IF new_reserved IS NOT NULL THEN
        PERFORM ingot.lock_usage(ARRAY[of_tenant]);
    END IF;
    known := ingot.lock_upload(of_tenant, of_id);
    IF known.state NOT IN ('open', 'verifying') THEN
        PERFORM ingot.refuse('IN065', '');
    ELSIF known.epoch <> of_epoch THEN
        PERFORM ingot.refuse('IN046', '');
    END IF;
    IF new_reserved <> known.reserved THEN
        more := ARRAY[new_reserved - known.reserved];
        PERFORM ingot.expect_none((
            ingot.misfits(ARRAY[of_tenant], ARRAY[known.owner], more, more, ARRAY[owner_quota], ARRAY[NULL::text])
        )[1]);
        PERFORM ingot.add_usage(ARRAY[of_tenant], ARRAY[known.owner], '{0}', more, '{0}', '{0}', ARRAY[owner_quota]);
    END IF;
    INSERT INTO ingot.tombstones (digest, at) SELECT known.blob, now WHERE known.blob <> new_blob;
    UPDATE ingot.uploads AS u SET
        received = coalesce(new_received, u.received), reserved = coalesce(new_reserved, u.reserved),
        blob = coalesce(new_blob, u.blob), sha256 = coalesce(new_sha256, u.sha256),
        state = CASE WHEN verifying THEN 'verifying' ELSE u.state END,
        verifying_at = CASE WHEN verifying THEN coalesce(u.verifying_at, now) ELSE u.verifying_at END,
        expires_at = now + keep
    WHERE u.tenant = of_tenant AND u.id = of_id RETURNING u.* INTO known;
    RETURN ingot.upload_told(known);
END
$$;

-- Let uploads go that are held, with what they refer to, have set aside, or have brought to the object store.
-- The tenants are held too.
CREATE OR REPLACE FUNCTION ingot.drop_uploads(of_tenants uuid[], ids uuid[], now bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    gone ingot.uploads[];
BEGIN
    WITH dropped AS (
        DELETE FROM ingot.uploads AS u USING unnest(of_tenants, ids) AS a (tenant, id)
        WHERE u.tenant = a.tenant AND u.id = a.id RETURNING u
    )
    SELECT array_agg(d.u) INTO gone FROM dropped AS d;
    IF gone IS NULL THEN
        RETURN 0;
    END IF;
    INSERT INTO ingot.trash (place, multipart) SELECT u.place, u.multipart FROM unnest(gone) AS u WHERE u.place IS NOT NULL
    ON CONFLICT DO NOTHING;
    INSERT INTO ingot.tombstones (digest, at) SELECT DISTINCT u.blob, now FROM unnest(gone) AS u
    WHERE u.blob IS NOT NULL AND u.refers;
    PERFORM ingot.add_usage(
        array_agg(u.tenant), array_agg(u.owner),
        array_agg(CASE WHEN u.state = 'done' AND u.refers THEN -u.size ELSE 0 END), array_agg(-u.reserved),
        array_agg(0::bigint), array_agg(0::bigint)
    )
    FROM unnest(gone) AS u;
    RETURN cardinality(gone);
END
$$;

-- End an upload that is not done: it failed with a code, and is kept so for a while, or it is gone. A job that waits for it
-- is canceled, and answered as `queue_blocked` does.
CREATE OR REPLACE FUNCTION ingot.end_upload(of_tenant uuid, of_id uuid, code text, keep bigint) RETURNS SETOF text
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
    known ingot.uploads;
BEGIN
    PERFORM ingot.expect_tenant(of_tenant);
    IF EXISTS (
        SELECT FROM ingot.uploads AS u WHERE u.tenant = of_tenant AND u.id = of_id AND u.job IS NOT NULL AND u.fence IS NULL
    ) THEN
        PERFORM ingot.lock_blocked_of(ARRAY[of_tenant]);
    END IF;
    PERFORM ingot.lock_usage(ARRAY[of_tenant]);
    now := ingot.clock();
    SELECT u.* INTO known FROM ingot.uploads AS u
    WHERE u.tenant = of_tenant AND u.id = of_id AND u.state <> 'done' AND (code IS NULL OR u.state <> 'failed') FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    ELSIF code IS NULL THEN
        PERFORM ingot.drop_uploads(ARRAY[of_tenant], ARRAY[of_id], now);
    ELSE
        INSERT INTO ingot.trash (place, multipart) SELECT known.place, known.multipart WHERE known.place IS NOT NULL
        ON CONFLICT DO NOTHING;
        INSERT INTO ingot.tombstones (digest, at) SELECT known.blob, now WHERE known.blob IS NOT NULL;
        UPDATE ingot.uploads AS u SET
            state = 'failed', error = code, reserved = 0, place = NULL, multipart = NULL, expires_at = now + keep
        WHERE u.tenant = of_tenant AND u.id = of_id;
        PERFORM ingot.add_usage(ARRAY[of_tenant], ARRAY[known.owner], '{0}', ARRAY[-known.reserved], '{0}', '{0}');
    END IF;
    IF known.job IS NOT NULL AND known.fence IS NULL THEN
        RETURN QUERY SELECT ingot.cancel_blocked(
            ARRAY[known.job], ARRAY[ingot.why_without(known.name, coalesce(code, 'it was given up'))], now
        );
    END IF;
END
$$;

-- What a job says that was canceled because an input did not come.
CREATE OR REPLACE FUNCTION ingot.why_without(name text, reason text) RETURNS text
LANGUAGE sql IMMUTABLE
AS $$ SELECT format('the input %s did not come: %s', name, reason) $$;

-- End so many uploads, at most, whose time is over, and those of attempts that do not run any more. One that somebody has to
-- do with at this moment is left for the next round. Jobs that wait for one are canceled, and answered as `queue_blocked` does.
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
    waiting ingot.uploads[];
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
    PERFORM ingot.lock_blocked_of(ARRAY(
        SELECT u.tenant FROM unnest(of_tenants, ids) AS a (tenant, id)
        JOIN ingot.uploads AS u ON u.tenant = a.tenant AND u.id = a.id WHERE u.job IS NOT NULL AND u.fence IS NULL
    ));
    PERFORM ingot.lock_usage(of_tenants);
    SELECT array_agg((h.u).tenant), array_agg((h.u).id),
        array_agg(h.u) FILTER (WHERE (h.u).job IS NOT NULL AND (h.u).fence IS NULL AND (h.u).state IN ('open', 'verifying'))
    INTO of_tenants, ids, waiting FROM (
        SELECT u FROM unnest(of_tenants, ids) AS a (tenant, id)
        JOIN ingot.uploads AS u ON u.tenant = a.tenant AND u.id = a.id
        WHERE u.expires_at <= now AND (u.fence IS NULL OR u.state <> 'done') OR u.fence IS NOT NULL
            AND NOT EXISTS (SELECT FROM ingot.leases AS l WHERE l.id = u.job AND l.fence = u.fence)
        ORDER BY u.tenant, u.id FOR UPDATE OF u SKIP LOCKED
    ) AS h;
    IF ids IS NOT NULL THEN
        now := ingot.clock();
        swept := ingot.drop_uploads(of_tenants, ids, now);
        IF waiting IS NOT NULL THEN
            canceled := ARRAY(
                SELECT c FROM (
                    SELECT array_agg(w.job) AS jobs, array_agg(ingot.why_without(w.name, 'its time was over')) AS reasons
                    FROM unnest(waiting) AS w
                ) AS w CROSS JOIN LATERAL ingot.cancel_blocked(w.jobs, w.reasons, now) AS c
            );
        END IF;
    END IF;
    RETURN NEXT;
END
$$;

-- Uploads to be read back, those first that wait for longest, as JSON.
CREATE OR REPLACE FUNCTION ingot.list_verifying(uploads_max integer) RETURNS SETOF text
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
    SELECT ingot.upload_told(u) FROM ingot.uploads AS u WHERE u.state = 'verifying' ORDER BY u.verifying_at LIMIT uploads_max
$$;
