-- What all that changes blobs is made of. None of these is called from outside.

-- Hold what tenants keep: nobody else changes their keys, uploads, files and counts until the transaction ends.
CREATE OR REPLACE FUNCTION ingot.lock_usage(of_tenants uuid[]) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    owed record;
BEGIN
    INSERT INTO ingot.usage (tenant, owner)
    SELECT t.id, '' FROM ingot.tenants AS t
    WHERE t.id = ANY (of_tenants) AND NOT EXISTS (SELECT FROM ingot.usage AS u WHERE u.tenant = t.id AND u.owner = '')
    ORDER BY t.id
    ON CONFLICT DO NOTHING;
    PERFORM FROM ingot.usage AS u WHERE u.tenant = ANY (of_tenants) AND u.owner = '' ORDER BY u.tenant FOR UPDATE;
    -- A version written by a transaction that came after this one would put its event after ours.
    PERFORM ingot.begin_again() FROM ingot.usage AS u
    WHERE u.tenant = ANY (of_tenants) AND u.owner = '' AND age(u.xmin) < age(pg_current_xact_id()::xid);
    IF EXISTS (SELECT FROM ingot.usage_owed AS o WHERE o.tenant = ANY (of_tenants)) THEN
        WITH gone AS (
            DELETE FROM ingot.usage_owed AS o WHERE o.tenant = ANY (of_tenants) RETURNING o.*
        )
        SELECT array_agg(g.tenant) AS tenants, array_agg(g.owner) AS owners, array_agg(g.bytes) AS bytes,
            array_agg(0::bigint) AS nothing INTO owed FROM gone AS g;
        PERFORM ingot.add_usage(owed.tenants, owed.owners, owed.bytes, owed.nothing, owed.nothing, owed.nothing);
    END IF;
END
$$;

-- How much a tenant may keep.
CREATE OR REPLACE FUNCTION ingot.quota_of(of_tenant uuid) RETURNS bigint
LANGUAGE plpgsql STABLE  -- Its plan is kept; that of a function in SQL is made anew in every statement.
AS $$
BEGIN
    RETURN (SELECT (t.limits::json ->> 'quota_bytes')::bigint FROM ingot.tenants AS t WHERE t.id = of_tenant);
END
$$;

-- Append events, in the order given; `news` is what each tells, as JSON.
CREATE OR REPLACE FUNCTION ingot.tell_of_blobs(of_tenants uuid[], names text[], news text[]) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    INSERT INTO ingot.events (tenant, position, at, entries)
    SELECT n.tenant, ingot.position(pg_current_xact_id()), ingot.clock(),
        '[' || string_agg('["' || n.name || '",' || to_json(n.data) || ']', ',' ORDER BY n.place) || ']'
    FROM unnest(of_tenants, names, news) WITH ORDINALITY AS n (tenant, name, data, place)
    GROUP BY n.tenant
    ON CONFLICT (tenant, position) DO UPDATE SET entries = ingot.then(events.entries, excluded.entries);
END
$$;

-- What is told of a blob, as JSON.
CREATE OR REPLACE FUNCTION ingot.blob_news(
    of_blob bytea, of_size bigint, of_key text, of_type text, of_job uuid, of_name text
) RETURNS text
LANGUAGE sql STABLE  -- One expression, which becomes part of the statement that asks for it.
AS $$
    SELECT json_build_object(
        'blob_id', encode(of_blob, 'hex'), 'size', of_size, 'key', of_key, 'content_type', of_type, 'job_id', of_job,
        'name', of_name
    )::text
$$;

-- Which of these changes do not fit into a quota, one after the other: of such a one why, and nothing of those that fit.
-- What takes no more than before always fits.
CREATE OR REPLACE FUNCTION ingot.misfits(
    of_tenants uuid[], of_owners text[], more bigint[], more_of_owners bigint[], owner_quotas bigint[], refusals text[]
) RETURNS text[]
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    found text[] := refusals;
    used jsonb;
    one record;
    of_all text;
    of_own text;
BEGIN
    IF NOT EXISTS (SELECT FROM unnest(owner_quotas) AS q WHERE q IS NOT NULL)
        AND NOT EXISTS (
            SELECT FROM ingot.tenants AS t WHERE t.id = ANY (of_tenants) AND (t.limits::json ->> 'quota_bytes') IS NOT NULL
        ) THEN
        RETURN found;
    END IF;
    SELECT coalesce(jsonb_object_agg(u.name, u.used), '{}') INTO used FROM (
        SELECT u.tenant || ' ' || u.owner AS name, sum(u.used)::bigint AS used FROM (
            SELECT u.tenant, u.owner, u.bytes + u.reserved AS used FROM ingot.usage AS u
            WHERE u.tenant = ANY (of_tenants) AND (u.owner = '' OR u.owner = ANY (of_owners))
            UNION ALL
            SELECT o.tenant, w.owner, o.bytes FROM ingot.usage_owed AS o CROSS JOIN LATERAL (VALUES (''), (o.owner)) AS w (owner)
            WHERE o.tenant = ANY (of_tenants)
        ) AS u
        GROUP BY 1
    ) AS u;
    FOR one IN
        SELECT a.*, ingot.quota_of(a.tenant) AS quota
        FROM unnest(of_tenants, of_owners, more, more_of_owners, owner_quotas, refusals)
            WITH ORDINALITY AS a (tenant, owner, more, own_more, own_quota, refusal, place)
        WHERE a.refusal IS NULL ORDER BY a.place
    LOOP
        of_all := one.tenant || ' ';
        of_own := one.tenant || ' ' || one.owner;
        IF one.more > 0 AND coalesce((used ->> of_all)::bigint, 0) + one.more > one.quota THEN
            found[one.place] := format('IN049 tenant %s %s %s', coalesce(used ->> of_all, '0'), one.quota, one.more);
        ELSIF one.own_more > 0 AND coalesce((used ->> of_own)::bigint, 0) + one.own_more > one.own_quota THEN
            found[one.place] := format('IN049 token %s %s %s', coalesce(used ->> of_own, '0'), one.own_quota, one.own_more);
        ELSE
            used := used || jsonb_build_object(
                of_all, coalesce((used ->> of_all)::bigint, 0) + one.more,
                of_own, coalesce((used ->> of_own)::bigint, 0) + one.own_more
            );
        END IF;
    END LOOP;
    RETURN found;
END
$$;

-- Count what owners keep more, or less, and what their tenants do by that; tell of a quota of which four fifths are taken
-- now. Of a tenant that was removed nothing is counted.
CREATE OR REPLACE FUNCTION ingot.add_usage(
    of_tenants uuid[], of_owners text[], more_bytes bigint[], more_reserved bigint[], more_keys bigint[],
    more_key_bytes bigint[], owner_quotas bigint[] DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    warned uuid[];
    news text[];
BEGIN
    INSERT INTO ingot.usage (tenant, owner)
    SELECT DISTINCT c.tenant, c.owner FROM unnest(of_tenants, of_owners) AS c (tenant, owner)
    WHERE c.owner IS NOT NULL AND EXISTS (SELECT FROM ingot.tenants AS t WHERE t.id = c.tenant)
        AND NOT EXISTS (SELECT FROM ingot.usage AS u WHERE u.tenant = c.tenant AND u.owner = c.owner)
    ON CONFLICT DO NOTHING;
    WITH changes AS MATERIALIZED (
        SELECT c.tenant, o.owner, sum(c.bytes) AS bytes, sum(c.reserved) AS reserved, sum(c.keys) AS keys,
            sum(c.key_bytes) AS key_bytes, max(o.quota) AS quota
        FROM unnest(of_tenants, of_owners, more_bytes, more_reserved, more_keys, more_key_bytes, owner_quotas)
            AS c (tenant, owner, bytes, reserved, keys, key_bytes, quota)
        CROSS JOIN LATERAL (VALUES ('', NULL), (c.owner, c.quota)) AS o (owner, quota)
        WHERE c.owner IS NOT NULL AND EXISTS (SELECT FROM ingot.tenants AS t WHERE t.id = c.tenant)
        GROUP BY c.tenant, o.owner
    ),
    counted AS (
        UPDATE ingot.usage AS u SET
            bytes = u.bytes + c.bytes, reserved = u.reserved + c.reserved, keys = u.keys + c.keys,
            key_bytes = u.key_bytes + c.key_bytes
        FROM changes AS c WHERE u.tenant = c.tenant AND u.owner = c.owner
        RETURNING u.tenant, nullif(u.owner, '') AS owner, u.bytes + u.reserved AS used, c.bytes + c.reserved AS more,
            CASE WHEN u.owner = '' THEN ingot.quota_of(u.tenant) ELSE c.quota END AS quota
    )
    SELECT array_agg(n.tenant), array_agg(row_to_json(n.news)::text) INTO warned, news FROM (
        SELECT c.tenant, (SELECT n FROM (
            SELECT CASE WHEN c.owner IS NULL THEN 'tenant' ELSE 'token' END AS scope, c.owner, c.used AS usage_bytes,
                c.quota AS quota_bytes
        ) AS n) AS news
        FROM counted AS c
        WHERE 5::numeric * (c.used - c.more) < 4::numeric * c.quota AND 5::numeric * c.used >= 4::numeric * c.quota
    ) AS n;
    IF warned IS NOT NULL THEN
        PERFORM ingot.tell_of_blobs(warned, array_fill('quota.warning'::text, ARRAY[cardinality(warned)]), news);
    END IF;
END
$$;

-- Keep blobs that are there until the transaction ends, and refuse those that come without a place and without bytes when
-- they are not there.
CREATE OR REPLACE FUNCTION ingot.hold_blobs(digests bytea[], new_places text[], inlines bytea[], refusals text[]) RETURNS text[]
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    bare bytea[] := ARRAY(
        SELECT a.digest FROM unnest(digests, new_places, inlines, refusals) AS a (digest, place, inline, refusal)
        WHERE a.refusal IS NULL AND a.place IS NULL AND a.inline IS NULL
    );
    held bytea[];
BEGIN
    IF cardinality(bare) = 0 THEN
        RETURN refusals;
    END IF;
    held := ARRAY(SELECT b.digest FROM ingot.blobs AS b WHERE b.digest = ANY (bare) ORDER BY b.digest FOR KEY SHARE);
    RETURN ARRAY(
        SELECT CASE
            WHEN a.refusal IS NULL AND a.place IS NULL AND a.inline IS NULL AND a.digest <> ALL (held) THEN 'IN048' ELSE a.refusal
        END
        FROM unnest(digests, new_places, inlines, refusals) WITH ORDINALITY AS a (digest, place, inline, refusal, number)
        ORDER BY a.number
    );
END
$$;

-- Have these blobs there, and keep them until the transaction ends; those with a refusal are passed over. Bytes that are
-- there already stay where they are, whoever brought them, unless they are damaged: what is not needed goes to the trash.
CREATE OR REPLACE FUNCTION ingot.store_blobs(
    digests bytea[], shas bytea[], sizes bigint[], new_places text[], inlines bytea[], all_checks bytea[], refusals text[]
) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    now bigint := ingot.clock();
    wanted bytea[] := ARRAY(
        SELECT DISTINCT a.digest FROM unnest(digests, refusals) AS a (digest, refusal) WHERE a.refusal IS NULL ORDER BY 1
    );
    fresh integer;
    held bytea[];
BEGIN
    -- One that is taken away at this moment is waited for, and made anew; so is one that was between the two statements.
    -- Nobody else sees what is made here, or can take it away: when all are, there is nothing to hold and nothing to mend.
    LOOP
        WITH new AS MATERIALIZED (
            SELECT DISTINCT ON (a.digest) a.*
            FROM unnest(digests, shas, sizes, new_places, inlines, all_checks, refusals)
                WITH ORDINALITY AS a (digest, sha256, size, place, inline, checks, refusal, number)
            WHERE a.refusal IS NULL ORDER BY a.digest, a.number
        ),
        made AS (
            INSERT INTO ingot.blobs (digest, sha256, size, place, verified_at)
            SELECT n.digest, n.sha256, n.size, n.place, now FROM new AS n ORDER BY n.digest
            ON CONFLICT (digest) DO NOTHING
            RETURNING digest, size
        ),
        counted AS (
            INSERT INTO ingot.blob_totals (blobs, bytes)
            SELECT count(*), sum(m.size) FROM made AS m HAVING count(*) > 0
        )
        INSERT INTO ingot.blob_contents (digest, inline, checks)
        SELECT n.digest, CASE WHEN n.place IS NULL THEN n.inline END, n.checks FROM new AS n
        WHERE (n.digest IN (SELECT m.digest FROM made AS m)) IS TRUE;  -- Looked up, not joined: both may be long.
        GET DIAGNOSTICS fresh = ROW_COUNT;
        EXIT WHEN fresh = cardinality(wanted);
        held := ARRAY(SELECT b.digest FROM ingot.blobs AS b WHERE b.digest = ANY (wanted) ORDER BY b.digest FOR KEY SHARE);
        EXIT WHEN cardinality(held) = cardinality(wanted);
    END LOOP;
    IF fresh < cardinality(wanted) THEN
        held := ARRAY(
            SELECT b.digest FROM ingot.blobs AS b WHERE b.damaged AND b.digest = ANY (ARRAY(
                SELECT a.digest FROM unnest(digests, new_places, inlines, refusals) AS a (digest, place, inline, refusal)
                WHERE a.refusal IS NULL AND (a.place IS NOT NULL OR a.inline IS NOT NULL)
            ))
            ORDER BY b.digest FOR NO KEY UPDATE
        );
    END IF;
    IF cardinality(held) > 0 THEN
        WITH new AS MATERIALIZED (
            SELECT DISTINCT ON (a.digest) a.*, b.place AS old_place
            FROM unnest(digests, new_places, inlines, all_checks, refusals)
                WITH ORDINALITY AS a (digest, place, inline, checks, refusal, number)
            JOIN ingot.blobs AS b ON b.digest = a.digest
            WHERE a.refusal IS NULL AND a.digest = ANY (held) AND (a.place IS NOT NULL OR a.inline IS NOT NULL)
            ORDER BY a.digest, a.number
        ),
        thrown AS (
            INSERT INTO ingot.trash (place) SELECT n.old_place FROM new AS n
            WHERE n.old_place IS NOT NULL AND n.old_place IS DISTINCT FROM n.place ON CONFLICT DO NOTHING
        ),
        mended AS (
            UPDATE ingot.blobs AS b SET place = n.place, damaged = false, verified_at = now FROM new AS n
            WHERE b.digest = n.digest
        )
        UPDATE ingot.blob_contents AS c SET inline = CASE WHEN n.place IS NULL THEN n.inline END, checks = n.checks
        FROM new AS n WHERE c.digest = n.digest;
    END IF;
    IF num_nonnulls(VARIADIC new_places) > 0 THEN
        INSERT INTO ingot.trash (place)
        SELECT DISTINCT a.place FROM unnest(digests, new_places, refusals) AS a (digest, place, refusal)
        JOIN ingot.blobs AS b ON b.digest = a.digest
        WHERE a.refusal IS NULL AND a.place IS NOT NULL AND a.place IS DISTINCT FROM b.place
        ON CONFLICT DO NOTHING;
    END IF;
END
$$;

-- Why a key cannot be set that is of this blob now, or is not there: `if_match` is the blob that it must be of, '*' is any
-- or none, and nothing is none. One expression, as `blob_news` is.
CREATE OR REPLACE FUNCTION ingot.refusal_of(of_key text, of_blob bytea, if_match text) RETURNS text
LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE
        WHEN if_match = '*' THEN NULL
        WHEN if_match IS NULL THEN 'IN061 ' || of_key
        WHEN of_blob IS NULL OR encode(of_blob, 'hex') <> if_match THEN 'IN062'
    END
$$;

-- The same of a key that is looked up.
CREATE OR REPLACE FUNCTION ingot.key_refusal(of_tenant uuid, of_key text, if_match text) RETURNS text
LANGUAGE sql STABLE
AS $$
    SELECT ingot.refusal_of(k.key, k.blob, if_match)
    FROM (SELECT) AS one LEFT JOIN ingot.keys AS k ON k.tenant = of_tenant AND k.key = of_key WHERE of_key IS NOT NULL
$$;

-- Take in blobs for which nothing stands in the way yet, each for a key, a job, or nothing; `freed` is what was set aside
-- for one. Answers why some are refused after all. The tenants are held, and no two are for the same key. Of what an attempt
-- makes nothing is told before that has succeeded, and of what it saves nothing at all.
CREATE OR REPLACE FUNCTION ingot.take_in(
    refusals text[], of_tenants uuid[], of_owners text[], of_uploads uuid[], of_keys text[], of_jobs uuid[], of_files text[],
    of_names text[], digests bytea[], shas bytea[], sizes bigint[], new_places text[], inlines bytea[], all_checks bytea[],
    content_types text[], original_names text[], freed bigint[], owner_quotas bigint[], now bigint
) RETURNS text[]
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    more bigint[];
    more_of_owners bigint[];
    old_owners text[];
    old_sizes bigint[];
    old_blobs bytea[];
    found text[];
BEGIN
    SELECT array_agg(a.size - a.freed - coalesce(k.size, f.size, 0) ORDER BY a.place),
        array_agg(a.size - a.freed - CASE a.owner WHEN k.owner THEN k.size WHEN f.owner THEN f.size ELSE 0 END ORDER BY a.place),
        array_agg(k.owner ORDER BY a.place), array_agg(k.size ORDER BY a.place), array_agg(k.blob ORDER BY a.place)
    INTO more, more_of_owners, old_owners, old_sizes, old_blobs
    FROM unnest(of_tenants, of_owners, of_keys, of_jobs, of_files, of_names, sizes, freed)
        WITH ORDINALITY AS a (tenant, owner, key, job, file, name, size, freed, place)
    LEFT JOIN ingot.keys AS k ON k.tenant = a.tenant AND k.key = a.key
    LEFT JOIN ingot.job_files AS f ON f.job = a.job AND f.kind = a.file AND f.name = a.name AND a.file <> 'output';
    found := ingot.hold_blobs(digests, new_places, inlines, refusals);
    found := ingot.misfits(of_tenants, of_owners, more, more_of_owners, owner_quotas, found);
    IF array_position(found, NULL) IS NULL THEN
        RETURN found;
    END IF;
    PERFORM ingot.store_blobs(digests, shas, sizes, new_places, inlines, all_checks, found);
    WITH taken AS MATERIALIZED (
        SELECT a.* FROM unnest(
            found, of_tenants, of_owners, of_uploads, of_keys, digests, shas, sizes, content_types, original_names, old_blobs
        ) AS a (refusal, tenant, owner, upload, key, digest, sha256, size, content_type, original_name, old_blob)
        WHERE a.refusal IS NULL AND a.key IS NOT NULL
    ),
    buried AS (
        INSERT INTO ingot.tombstones (digest, at) SELECT t.old_blob, now FROM taken AS t WHERE t.old_blob <> t.digest
    )
    INSERT INTO ingot.keys AS k (
        tenant, key, blob, sha256, size, content_type, original_name, owner, uploaded_at, upload
    )
    SELECT t.tenant, t.key, t.digest, t.sha256, t.size, t.content_type, t.original_name, t.owner, now, t.upload FROM taken AS t
    ON CONFLICT (tenant, key) DO UPDATE SET
        blob = excluded.blob, sha256 = excluded.sha256, size = excluded.size, content_type = excluded.content_type,
        original_name = excluded.original_name, owner = excluded.owner, uploaded_at = excluded.uploaded_at,
        upload = excluded.upload;
    PERFORM ingot.tell_of_blobs(
        array_agg(t.tenant ORDER BY t.place), array_agg('blob.stored'::text),
        array_agg(ingot.blob_news(t.digest, t.size, t.key, t.content_type, t.job, t.name) ORDER BY t.place)
    )
    FROM unnest(found, of_tenants, digests, sizes, of_keys, content_types, of_jobs, of_files, of_names)
        WITH ORDINALITY AS t (refusal, tenant, digest, size, key, content_type, job, file, name, place)
    WHERE t.refusal IS NULL AND coalesce(t.file, '') NOT IN ('output', 'checkpoint') HAVING count(*) > 0;
    PERFORM ingot.add_usage(
        array_agg(c.tenant), array_agg(c.owner), array_agg(c.bytes), array_agg(c.reserved), array_agg(c.keys),
        array_agg(c.key_bytes), array_agg(c.quota)
    )
    FROM unnest(found, of_tenants, of_owners, sizes, freed, of_keys, old_owners, old_sizes, owner_quotas)
        AS t (refusal, tenant, owner, size, freed, key, old_owner, old_size, quota)
    CROSS JOIN LATERAL (
        SELECT t.tenant, t.owner, t.size AS bytes, -t.freed AS reserved, (t.key IS NOT NULL)::integer::bigint AS keys,
            CASE WHEN t.key IS NULL THEN 0 ELSE t.size END AS key_bytes, t.quota
        UNION ALL
        SELECT t.tenant, t.old_owner, -t.old_size, 0, -1, -t.old_size, NULL WHERE t.old_owner IS NOT NULL
    ) AS c
    WHERE t.refusal IS NULL;
    RETURN found;
END
$$;

-- What a tenant keeps, or an owner in it, and how much a tenant may.
CREATE OR REPLACE FUNCTION ingot.get_usage(of_tenant uuid, of_owner text)
RETURNS TABLE (bytes bigint, reserved bigint, keys bigint, key_bytes bigint, quota bigint)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
    SELECT coalesce(u.bytes, 0) + coalesce((
            SELECT sum(o.bytes) FROM ingot.usage_owed AS o WHERE o.tenant = of_tenant AND of_owner IN ('', o.owner)
        ), 0)::bigint, coalesce(u.reserved, 0), coalesce(u.keys, 0), coalesce(u.key_bytes, 0),
        CASE WHEN of_owner = '' THEN ingot.quota_of(of_tenant) END
    FROM (SELECT) AS one LEFT JOIN ingot.usage AS u ON u.tenant = of_tenant AND u.owner = of_owner
$$;
