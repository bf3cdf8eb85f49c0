-- What refers to a blob, in all tenants.
CREATE OR REPLACE FUNCTION ingot.is_kept(of_blob bytea) RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT EXISTS (SELECT FROM ingot.keys AS k WHERE k.blob = of_blob)
        OR EXISTS (
            SELECT FROM ingot.uploads AS u WHERE u.blob = of_blob AND u.blob IS NOT NULL AND u.refers
        )
        OR EXISTS (SELECT FROM ingot.job_files AS f WHERE f.blob = of_blob)
$$;

-- Take a blob away that nothing has referred to for so long, and answer its size; or answer nothing, and it stays.
-- Who makes a reference holds the row: either that is seen here, or the blob is found gone there. With `dry_run` the answer
-- is the same, and nothing is changed.
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
DECLARE
    now bigint := ingot.clock();
    known ingot.blobs;
    youngest bigint;
BEGIN
    IF dry_run THEN
        RETURN (
            SELECT b.size FROM ingot.blobs AS b WHERE b.digest = of_blob AND NOT ingot.is_kept(of_blob)
                AND (SELECT max(t.at) FROM ingot.tombstones AS t WHERE t.digest = of_blob) <= now - grace
        );
    END IF;
    SELECT b.* INTO known FROM ingot.blobs AS b WHERE b.digest = of_blob FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        DELETE FROM ingot.tombstones AS t
        WHERE t.digest = of_blob AND NOT EXISTS (SELECT FROM ingot.blobs AS b WHERE b.digest = of_blob);
        RETURN NULL;
    END IF;
    -- In one statement: a reference that goes after this was begun leaves a tombstone that is not seen.
    DELETE FROM ingot.tombstones AS t WHERE t.digest = of_blob AND ingot.is_kept(of_blob);
    SELECT max(t.at) INTO youngest FROM ingot.tombstones AS t WHERE t.digest = of_blob;
    IF ingot.is_kept(of_blob) OR youngest IS NULL THEN
        RETURN NULL;
    ELSIF youngest > now - grace THEN
        DELETE FROM ingot.tombstones AS t WHERE t.digest = of_blob AND t.at < youngest;
        RETURN NULL;
    END IF;
    DELETE FROM ingot.tombstones AS t WHERE t.digest = of_blob;
    DELETE FROM ingot.blob_contents AS c WHERE c.digest = of_blob;
    DELETE FROM ingot.blobs AS b WHERE b.digest = of_blob;
    INSERT INTO ingot.blob_totals (blobs, bytes) VALUES (-1, -known.size);
    INSERT INTO ingot.trash (place) SELECT known.place WHERE known.place IS NOT NULL ON CONFLICT DO NOTHING;
    RETURN known.size;
END
$$;

-- Blobs with a tombstone that is so old, oldest first, behind one that was told before. One with many comes with the first.
CREATE OR REPLACE FUNCTION ingot.list_condemned(grace bigint, blobs_max integer, passed bytea) RETURNS SETOF bytea
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
    since bigint := coalesce((SELECT min(t.at) FROM ingot.tombstones AS t WHERE t.digest = passed), 0);
BEGIN
    RETURN QUERY
    SELECT t.digest FROM ingot.tombstones AS t
    WHERE t.at <= now - grace AND (t.at, t.digest) > (since, coalesce(passed, ''))
        AND NOT EXISTS (SELECT FROM ingot.tombstones AS o WHERE o.digest = t.digest AND o.at < t.at)
    GROUP BY t.at, t.digest ORDER BY t.at, t.digest LIMIT blobs_max;
END
$$;

CREATE OR REPLACE FUNCTION ingot.list_trash(objects_max integer, behind text) RETURNS TABLE (place text, multipart text)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$ SELECT t.place, t.multipart FROM ingot.trash AS t WHERE t.place > behind ORDER BY t.place LIMIT objects_max $$;

CREATE OR REPLACE FUNCTION ingot.forget_trash(places text[]) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$ DELETE FROM ingot.trash AS t WHERE t.place = ANY (places) $$;

-- Those of these places that are named somewhere. One moves from one table to another in one transaction.
CREATE OR REPLACE FUNCTION ingot.known_places(places text[]) RETURNS SETOF text
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
    SELECT p.place FROM unnest(places) AS p (place)
    WHERE EXISTS (SELECT FROM ingot.blobs AS b WHERE b.place = p.place)
        OR EXISTS (SELECT FROM ingot.uploads AS u WHERE u.place = p.place)
        OR EXISTS (SELECT FROM ingot.trash AS t WHERE t.place = p.place)
$$;

-- Remember which object store this is, unless there are objects in another one; which it is, and the name of the database.
CREATE OR REPLACE FUNCTION ingot.keep_objects(of_id text) RETURNS TABLE (store_id text, database text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '3s'
AS $$
DECLARE
    known text;
BEGIN
    INSERT INTO ingot.object_store (id) VALUES (of_id) ON CONFLICT (only_row) DO NOTHING;
    SELECT o.id INTO known FROM ingot.object_store AS o FOR UPDATE;
    IF known <> of_id AND NOT EXISTS (SELECT FROM ingot.blobs AS b WHERE b.place IS NOT NULL)
        AND NOT EXISTS (SELECT FROM ingot.uploads AS u WHERE u.place IS NOT NULL) AND NOT EXISTS (SELECT FROM ingot.trash) THEN
        UPDATE ingot.object_store SET id = of_id;
    END IF;
    RETURN QUERY SELECT o.id, o.database FROM ingot.object_store AS o;
END
$$;

-- These blobs were read at these places: they were whole, or damaged. One that is elsewhere by now was not read.
CREATE OR REPLACE FUNCTION ingot.note_scrub(digests bytea[], places text[], damages boolean[]) RETURNS void
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
    PERFORM FROM ingot.blobs AS b WHERE b.digest = ANY (digests) ORDER BY b.digest FOR NO KEY UPDATE;
    UPDATE ingot.blobs AS b SET verified_at = now, damaged = r.damaged
    FROM (
        SELECT r.digest, r.place, bool_or(r.damaged) AS damaged FROM unnest(digests, places, damages) AS r (digest, place, damaged)
        GROUP BY r.digest, r.place
    ) AS r
    WHERE b.digest = r.digest AND b.place IS NOT DISTINCT FROM r.place;
END
$$;

-- Blobs that nobody has read whole since then, longest first.
CREATE OR REPLACE FUNCTION ingot.list_to_scrub(since bigint, blobs_max integer)
RETURNS TABLE (
    digest bytea, sha256 bytea, size bigint, place text, damaged boolean, inline bytea, checks bytea
)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
    SELECT b.digest, b.sha256, b.size, b.place, b.damaged, c.inline, c.checks
    FROM (
        SELECT b.* FROM ingot.blobs AS b WHERE b.verified_at < since ORDER BY b.verified_at, b.digest LIMIT blobs_max
    ) AS b
    JOIN ingot.blob_contents AS c ON c.digest = b.digest
    ORDER BY b.verified_at, b.digest
$$;

-- Sum up what was counted of blobs. Several may do it at once, each with rows of its own.
CREATE OR REPLACE FUNCTION ingot.fold_blob_totals(rows_max integer) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    IF (SELECT count(*) FROM (SELECT FROM ingot.blob_totals LIMIT 2) AS t) < 2 THEN
        RETURN;
    END IF;
    WITH gone AS (
        DELETE FROM ingot.blob_totals WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM ingot.blob_totals LIMIT rows_max FOR UPDATE SKIP LOCKED
        ))
        RETURNING blobs, bytes
    )
    INSERT INTO ingot.blob_totals (blobs, bytes) SELECT sum(g.blobs), sum(g.bytes) FROM gone AS g HAVING count(*) > 0;
END
$$;

-- How things stand with all blobs. Of what is counted here row by row, no more than so many.
CREATE OR REPLACE FUNCTION ingot.blob_figures(rows_max integer)
RETURNS TABLE (
    blobs bigint, bytes bigint, damaged bigint, tombstones bigint, trash bigint, uploads bigint, verified_before bigint
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
            SELECT count(DISTINCT t.digest)
            FROM (SELECT t.digest FROM ingot.tombstones AS t ORDER BY t.digest, t.at LIMIT rows_max) AS t
        ),
        (SELECT count(*) FROM (SELECT FROM ingot.trash LIMIT rows_max) AS t),
        (SELECT count(*) FROM (SELECT FROM ingot.uploads LIMIT rows_max) AS u),
        (SELECT min(b.verified_at) FROM ingot.blobs AS b)
    FROM ingot.blob_totals AS t
$$;

-- Whether a name begins with one of these, in whole segments; without these, any does.
CREATE OR REPLACE FUNCTION ingot.is_in_sight(of_name text, beginnings text[]) RETURNS boolean
LANGUAGE sql IMMUTABLE
AS $$
    SELECT beginnings IS NULL OR EXISTS (
        SELECT FROM unnest(beginnings) AS p (name)
        WHERE of_name = p.name OR left(of_name, length(p.name) + 1) IN (p.name || '/', p.name || '.')
    )
$$;

-- A blob that something in sight in a tenant refers to, with some of what does, as JSON. What others have is not looked at
-- first, so that nothing tells of it.
CREATE OR REPLACE FUNCTION ingot.open_blob(
    of_tenant uuid, of_blob bytea, references_max integer,
    of_keys text[] DEFAULT NULL, of_uploads boolean DEFAULT true, of_types text[] DEFAULT NULL
)
RETURNS TABLE (
    digest bytea, sha256 bytea, size bigint, place text, damaged boolean, inline bytea, checks bytea, refers text
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
    found text;
BEGIN
    SELECT json_agg(json_build_object('kind', r.kind, 'name', r.name, 'job_id', r.job, 'job_type', j.type, 'since', r.since))
    INTO found
    FROM (
        (
            SELECT 'key' AS kind, k.key AS name, NULL::uuid AS job, k.uploaded_at AS since FROM ingot.keys AS k
            WHERE k.blob = of_blob AND k.tenant = of_tenant AND ingot.is_in_sight(k.key, of_keys) LIMIT references_max
        )
        UNION ALL
        (
            SELECT 'upload', u.id::text, NULL, u.done_at FROM ingot.uploads AS u
            WHERE of_uploads AND u.blob = of_blob AND u.tenant = of_tenant AND u.blob IS NOT NULL AND u.refers
                AND u.state = 'done' AND u.job IS NULL LIMIT references_max
        )
        UNION ALL
        (
            SELECT f.kind, f.name, f.job, f.since FROM ingot.job_files AS f
            WHERE f.blob = of_blob AND f.tenant = of_tenant AND (
                of_types IS NULL
                OR EXISTS (SELECT FROM ingot.jobs AS o WHERE o.id = f.job AND ingot.is_in_sight(o.type, of_types))
            )
            LIMIT references_max
        )
        LIMIT references_max
    ) AS r
    LEFT JOIN ingot.jobs AS j ON j.id = r.job;
    IF found IS NULL THEN
        RETURN;
    END IF;
    RETURN QUERY
    SELECT b.digest, b.sha256, b.size, b.place, b.damaged, c.inline, c.checks, found
    FROM ingot.blobs AS b JOIN ingot.blob_contents AS c ON c.digest = b.digest WHERE b.digest = of_blob;
END
$$;

-- Let go of the files of jobs that are gone, and of what their attempts were bringing in.
CREATE OR REPLACE FUNCTION ingot.drop_job_files(jobs uuid[]) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    now bigint;
    gone uuid[];
    files ingot.job_files[];
    of_tenants uuid[];
    ids uuid[];
BEGIN
    gone := ARRAY(
        SELECT DISTINCT f.job FROM ingot.job_files AS f WHERE f.job = ANY (jobs)
        UNION
        SELECT u.job FROM ingot.uploads AS u WHERE u.job = ANY (jobs) AND u.job IS NOT NULL
    );
    gone := ARRAY(SELECT g FROM unnest(gone) AS g WHERE NOT EXISTS (SELECT FROM ingot.jobs AS j WHERE j.id = g));
    IF cardinality(gone) = 0 THEN
        RETURN;
    END IF;
    PERFORM ingot.lock_usage(ARRAY(
        SELECT f.tenant FROM ingot.job_files AS f WHERE f.job = ANY (gone)
        UNION
        SELECT u.tenant FROM ingot.uploads AS u WHERE u.job = ANY (gone) AND u.job IS NOT NULL
    ));
    now := ingot.clock();
    SELECT array_agg(f) INTO files FROM ingot.job_files AS f WHERE f.job = ANY (gone);
    PERFORM ingot.drop_files(files, now);
    SELECT array_agg(u.tenant), array_agg(u.id) INTO of_tenants, ids FROM (
        SELECT u.tenant, u.id FROM ingot.uploads AS u WHERE u.job = ANY (gone) AND u.job IS NOT NULL
        ORDER BY u.tenant, u.id FOR UPDATE
    ) AS u;
    PERFORM ingot.drop_uploads(coalesce(of_tenants, '{}'), coalesce(ids, '{}'), now);
END
$$;

-- Take away up to so many keys and uploads of a removed tenant, and leave their blobs to the collector.
CREATE OR REPLACE FUNCTION ingot.clear_blobs(of_tenant uuid, rows_max bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    now bigint := ingot.clock();
    names text[] := ARRAY(SELECT k.key FROM ingot.keys AS k WHERE k.tenant = of_tenant ORDER BY k.key LIMIT rows_max);
    ids uuid[];
BEGIN
    IF cardinality(names) > 0 THEN
        PERFORM ingot.drop_keys(array_fill(of_tenant, ARRAY[cardinality(names)]), names, now, false);
    END IF;
    ids := ARRAY(
        SELECT u.id FROM ingot.uploads AS u WHERE u.tenant = of_tenant ORDER BY u.id LIMIT rows_max - cardinality(names) FOR UPDATE
    );
    IF cardinality(ids) > 0 THEN
        PERFORM ingot.drop_uploads(array_fill(of_tenant, ARRAY[cardinality(ids)]), ids, now);
    END IF;
    RETURN cardinality(names) + cardinality(ids);
END
$$;
