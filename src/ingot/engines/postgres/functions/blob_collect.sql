-- Delete a blob of a tenant without references if its tombstone is older than `grace`, and return its size; or return NULL.
-- Transactions of applications that add a reference lock the row: either the reference is visible here, or they find that the
-- blob is gone. All others lock the usage of the tenant. With `dry_run` the result is the same, and nothing changes.
CREATE OR REPLACE FUNCTION ingot.collect_blob_of(of_holder uuid, of_blob bytea, grace bigint, dry_run boolean) RETURNS bigint
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
    blob ingot.blobs;
    tombstone ingot.tombstones;
BEGIN
    IF NOT dry_run THEN
        PERFORM ingot.lock_usage(ARRAY[of_holder]);
        SELECT b.* INTO blob FROM ingot.blobs AS b
        WHERE b.holder = of_holder AND b.digest = of_blob FOR UPDATE SKIP LOCKED;
    ELSE
        SELECT b.* INTO blob FROM ingot.blobs AS b WHERE b.holder = of_holder AND b.digest = of_blob;
    END IF;
    SELECT t.* INTO tombstone FROM ingot.tombstones AS t WHERE t.holder = of_holder AND t.digest = of_blob;
    IF blob.digest IS NULL OR tombstone.digest IS NULL OR tombstone.at > now - grace THEN
        RETURN NULL;
    ELSIF ingot.count_references(of_holder, of_blob) > 0 THEN
        IF NOT dry_run THEN
            PERFORM ingot.unbury(ARRAY[of_holder], ARRAY[of_blob]);
        END IF;
        RETURN NULL;
    ELSIF EXISTS (
        SELECT FROM ingot.uploads AS u
        WHERE u.blob = of_blob AND u.tenant = of_holder AND u.blob IS NOT NULL AND u.refers
    ) THEN
        RETURN NULL;  -- An unfinished upload announced the blob.
    ELSIF dry_run THEN
        RETURN blob.size;
    END IF;
    -- Several tenants may have an object that was stored before blobs belonged to tenants. Concurrent calls see each other's rows.
    IF blob.place IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock(hashtextextended(blob.place, 0));
    END IF;
    DELETE FROM ingot.blob_contents AS c WHERE c.holder = of_holder AND c.digest = of_blob;
    DELETE FROM ingot.blobs AS b WHERE b.holder = of_holder AND b.digest = of_blob;
    DELETE FROM ingot.tombstones AS t WHERE t.holder = of_holder AND t.digest = of_blob;
    INSERT INTO ingot.blob_totals (blobs, bytes) VALUES (-1, -blob.size);
    PERFORM ingot.add_deleted(ARRAY[of_holder], ARRAY[tombstone.owner], ARRAY[-tombstone.size]);
    IF blob.place IS NOT NULL AND NOT EXISTS (SELECT FROM ingot.blobs AS b WHERE b.place = blob.place) THEN
        PERFORM ingot.trash_objects(ARRAY[blob.place], ARRAY[NULL::text], ARRAY[of_holder], ARRAY[tombstone.owner],
            ARRAY[tombstone.size], ARRAY[blob.sent_until]);
    END IF;
    RETURN blob.size;
END
$$;

-- The same for the blobs of all tenants with these bytes. Servers of the previous release call this.
CREATE OR REPLACE FUNCTION ingot.collect_blob(of_blob bytea, grace bigint, dry_run boolean DEFAULT false) RETURNS bigint
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
BEGIN
    RETURN (
        SELECT sum(ingot.collect_blob_of(b.holder, b.digest, grace, dry_run))::bigint
        FROM (
            SELECT b.holder, b.digest FROM ingot.blobs AS b WHERE b.digest = of_blob ORDER BY b.holder
        ) AS b
    );
END
$$;

-- Blobs whose tombstone is older than `grace`, oldest first, after one that was listed before.
CREATE OR REPLACE FUNCTION ingot.list_tombstoned(grace bigint, blobs_max integer, after_holder uuid, after_blob bytea)
RETURNS TABLE (holder text, digest bytea)
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
    now bigint := ingot.clock();
    since bigint := (SELECT t.at FROM ingot.tombstones AS t WHERE t.holder = after_holder AND t.digest = after_blob);
    first_holder uuid := '00000000-0000-0000-0000-000000000000';
BEGIN
    RETURN QUERY
    SELECT t.holder::text, t.digest FROM ingot.tombstones AS t
    WHERE t.at <= now - grace
        AND (t.at, t.holder, t.digest) > (coalesce(since, 0), coalesce(after_holder, first_holder), coalesce(after_blob, ''))
    ORDER BY t.at, t.holder, t.digest LIMIT blobs_max;
END
$$;

-- The same without the tenants; bytes of several tenants can occur several times. Servers of the previous release call this.
CREATE OR REPLACE FUNCTION ingot.list_collectable(grace bigint, blobs_max integer, after_blob bytea) RETURNS SETOF bytea
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
    since bigint := coalesce((SELECT min(t.at) FROM ingot.tombstones AS t WHERE t.digest = after_blob), 0);
BEGIN
    RETURN QUERY
    SELECT t.digest FROM ingot.tombstones AS t WHERE t.at <= now - grace AND t.at >= since AND t.digest IS DISTINCT FROM after_blob
    ORDER BY t.at, t.holder, t.digest LIMIT blobs_max;
END
$$;

-- Objects to delete now, in the order of their storage keys.
CREATE OR REPLACE FUNCTION ingot.list_trash(objects_max integer, after_key text) RETURNS TABLE (place text, multipart text)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    now bigint := ingot.clock();
BEGIN
    RETURN QUERY
    SELECT t.place, t.multipart FROM ingot.trash AS t
    WHERE t.place > after_key AND t.due_at <= now ORDER BY t.place LIMIT objects_max;
END
$$;

-- Remove deleted objects from the trash: their bytes are free. Those that a client could send meanwhile are deleted again later.
CREATE OR REPLACE FUNCTION ingot.delete_trash(storage_keys text[]) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
DECLARE
    now bigint := ingot.clock();
    deleted ingot.trash[];
BEGIN
    PERFORM ingot.lock_usage(ARRAY(
        SELECT DISTINCT t.holder FROM ingot.trash AS t WHERE t.place = ANY (storage_keys) AND t.holder IS NOT NULL
    ));
    WITH removed AS (
        DELETE FROM ingot.trash AS t WHERE t.place = ANY (storage_keys) AND t.sent_until <= t.due_at AND t.due_at <= now
        RETURNING t
    )
    SELECT array_agg(r.t) INTO deleted FROM removed AS r;
    UPDATE ingot.trash AS t SET due_at = t.sent_until WHERE t.place = ANY (storage_keys) AND t.sent_until > t.due_at;
    PERFORM ingot.add_deleted(array_agg(t.holder), array_agg(t.owner), array_agg(-t.size)) FROM unnest(deleted) AS t
    HAVING count(*) > 0;
END
$$;

-- Those of these storage keys that any row names. A key moves from one table to another in one transaction.
CREATE OR REPLACE FUNCTION ingot.known_storage_keys(storage_keys text[]) RETURNS SETOF text
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
    SELECT k.storage_key FROM unnest(storage_keys) AS k (storage_key)
    WHERE EXISTS (SELECT FROM ingot.blobs AS b WHERE b.place = k.storage_key)
        OR EXISTS (SELECT FROM ingot.uploads AS u WHERE u.place = k.storage_key)
        OR EXISTS (SELECT FROM ingot.trash AS t WHERE t.place = k.storage_key)
$$;

-- Remove objects from the trash, or refuse if the objects of the database are not in this store.
CREATE OR REPLACE FUNCTION ingot.forget_trash(of_store text, storage_keys text[]) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '3s'
AS $$
BEGIN
    PERFORM ingot.lock_object_store(of_store);
    PERFORM ingot.delete_trash(storage_keys);
END
$$;

-- Record that these blobs of tenants were read and are intact, or damaged, or refuse if the objects of the database are not in
-- this store. A blob that has another storage key by now is skipped.
CREATE OR REPLACE FUNCTION ingot.record_tenant_scrub(
    of_store text, of_holders uuid[], digests bytea[], storage_keys text[], damaged_flags boolean[]
) RETURNS void
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
BEGIN
    PERFORM ingot.lock_object_store(of_store);
    PERFORM FROM unnest(of_holders, digests) AS r (holder, digest)
    JOIN ingot.blobs AS b ON b.holder = r.holder AND b.digest = r.digest ORDER BY b.holder, b.digest FOR NO KEY UPDATE OF b;
    UPDATE ingot.blobs AS b SET verified_at = now, damaged = r.damaged
    FROM (
        SELECT r.holder, r.digest, r.storage_key, bool_or(r.damaged) AS damaged
        FROM unnest(of_holders, digests, storage_keys, damaged_flags) AS r (holder, digest, storage_key, damaged)
        GROUP BY r.holder, r.digest, r.storage_key
    ) AS r
    WHERE b.holder = r.holder AND b.digest = r.digest AND b.place IS NOT DISTINCT FROM r.storage_key;
END
$$;

-- Record a scrub, or refuse if the objects of the database are not in this store. Servers of the previous release call this.
CREATE OR REPLACE FUNCTION ingot.record_scrub_of(of_store text, digests bytea[], storage_keys text[], damaged_flags boolean[])
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '3s'
AS $$
BEGIN
    PERFORM ingot.lock_object_store(of_store);
    PERFORM ingot.record_scrub(digests, storage_keys, damaged_flags);
END
$$;

-- Record the object store of this database, unless objects exist in another one. Returns the recorded store and the name of
-- the database. Servers of the previous release call this instead of `register_server`.
CREATE OR REPLACE FUNCTION ingot.register_object_store(new_id text) RETURNS TABLE (store_id text, database text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '3s'
AS $$
DECLARE
    current_id text;
BEGIN
    INSERT INTO ingot.object_store (id) VALUES (new_id) ON CONFLICT (only_row) DO NOTHING;
    SELECT o.id INTO current_id FROM ingot.object_store AS o FOR UPDATE;
    IF current_id <> new_id AND NOT EXISTS (SELECT FROM ingot.blobs AS b WHERE b.place IS NOT NULL)
        AND NOT EXISTS (SELECT FROM ingot.uploads AS u WHERE u.place IS NOT NULL) AND NOT EXISTS (SELECT FROM ingot.trash) THEN
        UPDATE ingot.object_store SET id = new_id;
    END IF;
    RETURN QUERY SELECT o.id, o.database FROM ingot.object_store AS o;
END
$$;

-- Record that these blobs were read and are intact, or damaged. A blob that has another storage key by now is skipped.
CREATE OR REPLACE FUNCTION ingot.record_scrub(digests bytea[], storage_keys text[], damaged_flags boolean[]) RETURNS void
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
BEGIN
    PERFORM FROM ingot.blobs AS b WHERE b.digest = ANY (digests) ORDER BY b.holder, b.digest FOR NO KEY UPDATE;
    UPDATE ingot.blobs AS b SET verified_at = now, damaged = r.damaged
    FROM (
        SELECT r.digest, r.storage_key, bool_or(r.damaged) AS damaged
        FROM unnest(digests, storage_keys, damaged_flags) AS r (digest, storage_key, damaged)
        GROUP BY r.digest, r.storage_key
    ) AS r
    WHERE b.digest = r.digest AND b.place IS NOT DISTINCT FROM r.storage_key;
END
$$;

-- Blobs that were last verified before a time, oldest first.
CREATE OR REPLACE FUNCTION ingot.list_to_scrub(since bigint, blobs_max integer)
RETURNS TABLE (
    digest bytea, sha256 bytea, size bigint, place text, damaged boolean, inline bytea, checks bytea, blob_holder text, etag text
)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
    SELECT b.digest, b.sha256, b.size, b.place, b.damaged, c.inline, c.checks, b.holder::text, b.etag
    FROM (
        SELECT b.* FROM ingot.blobs AS b WHERE b.verified_at < since ORDER BY b.verified_at, b.holder, b.digest LIMIT blobs_max
    ) AS b
    JOIN ingot.blob_contents AS c ON c.holder = b.holder AND c.digest = b.digest
    ORDER BY b.verified_at, b.holder, b.digest
$$;

-- Replace rows of `blob_totals` by their sum. Concurrent calls take different rows.
CREATE OR REPLACE FUNCTION ingot.fold_blob_totals(rows_max integer) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    IF (SELECT count(*) FROM (SELECT FROM ingot.blob_totals LIMIT 2) AS t) < 2 THEN
        RETURN;
    END IF;
    WITH folded_totals AS (
        DELETE FROM ingot.blob_totals WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM ingot.blob_totals LIMIT rows_max FOR UPDATE SKIP LOCKED
        ))
        RETURNING blobs, bytes, deleted
    )
    INSERT INTO ingot.blob_totals (blobs, bytes, deleted)
    SELECT sum(g.blobs), sum(g.bytes), sum(g.deleted) FROM folded_totals AS g HAVING count(*) > 0;
END
$$;

-- Figures about all blobs. Rows without a counter are counted up to `rows_max`.
CREATE OR REPLACE FUNCTION ingot.blob_metrics(rows_max integer)
RETURNS TABLE (
    blobs bigint, bytes bigint, damaged bigint, tombstones bigint, trash bigint, uploads bigint, verified_before bigint,
    deleted_bytes bigint, blobs_from bigint, blobs_by bigint, objects_from bigint, objects_by bigint
)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
    SELECT coalesce(sum(t.blobs), 0)::bigint, coalesce(sum(t.bytes), 0)::bigint,
        (SELECT count(*) FROM (SELECT FROM ingot.blobs AS b WHERE b.damaged LIMIT rows_max) AS b),
        (
            SELECT count(*) FROM (SELECT FROM ingot.tombstones AS t LIMIT rows_max) AS t
        ),
        (SELECT count(*) FROM (SELECT FROM ingot.trash LIMIT rows_max) AS t),
        (SELECT count(*) FROM (SELECT FROM ingot.uploads LIMIT rows_max) AS u),
        (SELECT min(b.verified_at) FROM ingot.blobs AS b), coalesce(sum(t.deleted), 0)::bigint,
        (SELECT min(t.at) FROM ingot.tombstones AS t) + ingot.collect_grace(),
        (SELECT max(t.at) FROM ingot.tombstones AS t) + ingot.collect_grace(),
        (SELECT min(o.sent_until) FROM ingot.trash AS o), (SELECT max(o.sent_until) FROM ingot.trash AS o)
    FROM ingot.blob_totals AS t
$$;

-- Whether a name equals a prefix or continues it after `/` or `.`. NULL prefixes match every name.
CREATE OR REPLACE FUNCTION ingot.matches_prefix(of_name text, prefixes text[]) RETURNS boolean
LANGUAGE sql IMMUTABLE
AS $$
    SELECT prefixes IS NULL OR EXISTS (
        SELECT FROM unnest(prefixes) AS p (name)
        WHERE of_name = p.name OR left(of_name, length(p.name) + 1) IN (p.name || '/', p.name || '.')
    )
$$;

-- A blob with references in a tenant that the caller may see, and some of these references as JSON. References are checked
-- first, so that nothing reveals blobs of other tenants. References with the owner `of_owner`, and files of the job `of_job`,
-- are always visible.
CREATE OR REPLACE FUNCTION ingot.open_blob(
    of_tenant uuid, of_blob bytea, references_max integer,
    of_keys text[] DEFAULT NULL, of_uploads boolean DEFAULT true, of_types text[] DEFAULT NULL,
    of_owner text DEFAULT NULL, of_job uuid DEFAULT NULL
)
RETURNS TABLE (
    digest bytea, sha256 bytea, size bigint, place text, damaged boolean, inline bytea, checks bytea, refers text, blob_holder text,
    etag text
)
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
    references_json text;
BEGIN
    SELECT json_agg(json_build_object('kind', r.kind, 'name', r.name, 'job_id', r.job, 'job_type', j.type, 'since', r.since))
    INTO references_json
    FROM (
        (
            SELECT 'key' AS kind, k.key AS name, NULL::uuid AS job, k.uploaded_at AS since FROM ingot.keys AS k
            WHERE k.blob = of_blob AND k.tenant = of_tenant AND (ingot.matches_prefix(k.key, of_keys) OR k.owner = of_owner)
            LIMIT references_max
        )
        UNION ALL
        (
            SELECT 'upload', u.id::text, NULL, u.done_at FROM ingot.uploads AS u
            WHERE (of_uploads OR u.owner = of_owner) AND u.blob = of_blob AND u.tenant = of_tenant AND u.blob IS NOT NULL AND u.refers
                AND u.state = 'done' AND u.job IS NULL LIMIT references_max
        )
        UNION ALL
        (
            SELECT f.kind, f.name, f.job, f.since FROM ingot.job_files AS f
            WHERE f.blob = of_blob AND f.tenant = of_tenant AND (
                of_types IS NULL OR f.owner = of_owner OR f.job = of_job
                OR EXISTS (SELECT FROM ingot.jobs AS o WHERE o.id = f.job AND ingot.matches_prefix(o.type, of_types))
            )
            LIMIT references_max
        )
        LIMIT references_max
    ) AS r
    LEFT JOIN ingot.jobs AS j ON j.id = r.job;
    IF references_json IS NULL THEN
        RETURN;
    END IF;
    RETURN QUERY
    SELECT b.digest, b.sha256, b.size, b.place, b.damaged, c.inline, c.checks, references_json, b.holder::text, b.etag
    FROM ingot.blobs AS b JOIN ingot.blob_contents AS c ON c.holder = b.holder AND c.digest = b.digest
    WHERE b.holder = of_tenant AND b.digest = of_blob;
END
$$;

-- Delete the files and uploads of removed jobs.
CREATE OR REPLACE FUNCTION ingot.drop_job_files(jobs uuid[]) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    now bigint;
    removed_jobs uuid[];
    files ingot.job_files[];
    of_tenants uuid[];
    ids uuid[];
BEGIN
    removed_jobs := ARRAY(
        SELECT DISTINCT f.job FROM ingot.job_files AS f WHERE f.job = ANY (jobs)
        UNION
        SELECT u.job FROM ingot.uploads AS u WHERE u.job = ANY (jobs) AND u.job IS NOT NULL
    );
    removed_jobs := ARRAY(SELECT g FROM unnest(removed_jobs) AS g WHERE NOT EXISTS (SELECT FROM ingot.jobs AS j WHERE j.id = g));
    IF cardinality(removed_jobs) = 0 THEN
        RETURN;
    END IF;
    PERFORM ingot.lock_usage(ARRAY(
        SELECT f.tenant FROM ingot.job_files AS f WHERE f.job = ANY (removed_jobs)
        UNION
        SELECT u.tenant FROM ingot.uploads AS u WHERE u.job = ANY (removed_jobs) AND u.job IS NOT NULL
    ));
    now := ingot.clock();
    SELECT array_agg(f) INTO files FROM ingot.job_files AS f WHERE f.job = ANY (removed_jobs);
    PERFORM ingot.drop_files(files, now);
    SELECT array_agg(u.tenant), array_agg(u.id) INTO of_tenants, ids FROM (
        SELECT u.tenant, u.id FROM ingot.uploads AS u WHERE u.job = ANY (removed_jobs) AND u.job IS NOT NULL
        ORDER BY u.tenant, u.id FOR UPDATE
    ) AS u;
    PERFORM ingot.drop_uploads(coalesce(of_tenants, '{}'), coalesce(ids, '{}'), now);
END
$$;

-- Delete up to `rows_max` keys and uploads of a removed tenant. The garbage collector deletes the blobs.
CREATE OR REPLACE FUNCTION ingot.clear_blobs(of_tenant uuid, rows_max bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    now bigint := ingot.clock();
    key_names text[] := ARRAY(SELECT k.key FROM ingot.keys AS k WHERE k.tenant = of_tenant ORDER BY k.key LIMIT rows_max);
    ids uuid[];
BEGIN
    IF cardinality(key_names) > 0 THEN
        PERFORM ingot.drop_keys(array_fill(of_tenant, ARRAY[cardinality(key_names)]), key_names, now, false);
    END IF;
    ids := ARRAY(
        SELECT u.id FROM ingot.uploads AS u
        WHERE u.tenant = of_tenant ORDER BY u.id LIMIT rows_max - cardinality(key_names) FOR UPDATE
    );
    IF cardinality(ids) > 0 THEN
        PERFORM ingot.drop_uploads(array_fill(of_tenant, ARRAY[cardinality(ids)]), ids, now);
    END IF;
    RETURN cardinality(key_names) + cardinality(ids);
END
$$;
