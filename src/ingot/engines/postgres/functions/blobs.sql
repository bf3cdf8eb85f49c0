-- Helpers of the functions that change blobs. Only `get_usage` is called from outside.

-- Lock the usage of tenants: no other transaction changes their keys, uploads, job files and usage until this one ends.
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
    -- Our events must not come before those of a later transaction whose changes we build on.
    PERFORM ingot.retry_transaction() FROM ingot.usage AS u
    WHERE u.tenant = ANY (of_tenants) AND u.owner = '' AND age(u.xmin) < age(pg_current_xact_id()::xid);
    IF EXISTS (SELECT FROM ingot.usage_owed AS o WHERE o.tenant = ANY (of_tenants)) THEN
        WITH counted_rows AS (
            DELETE FROM ingot.usage_owed AS o WHERE o.tenant = ANY (of_tenants) RETURNING o.*
        )
        SELECT array_agg(g.tenant) AS tenants, array_agg(g.owner) AS owners, array_agg(g.bytes) AS bytes,
            array_agg(0::bigint) AS zeros INTO owed FROM counted_rows AS g;
        PERFORM ingot.add_usage(owed.tenants, owed.owners, owed.bytes, owed.zeros, owed.zeros, owed.zeros);
    END IF;
END
$$;

-- The quota of a tenant in bytes; NULL without one.
CREATE OR REPLACE FUNCTION ingot.quota_of(of_tenant uuid) RETURNS bigint
LANGUAGE plpgsql STABLE  -- Keeps its plan; a function in SQL would be planned in every statement.
AS $$
BEGIN
    RETURN (SELECT (t.limits::json ->> 'quota_bytes')::bigint FROM ingot.tenants AS t WHERE t.id = of_tenant);
END
$$;

-- Append events in the given order; `event_data` is the data of each, as JSON.
CREATE OR REPLACE FUNCTION ingot.append_blob_events(of_tenants uuid[], names text[], event_data text[]) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    INSERT INTO ingot.events (tenant, position, at, entries)
    SELECT n.tenant, ingot.event_position(pg_current_xact_id()), ingot.clock(),
        '[' || string_agg('["' || n.name || '",' || to_json(n.data) || ']', ',' ORDER BY n.ordinal) || ']'
    FROM unnest(of_tenants, names, event_data) WITH ORDINALITY AS n (tenant, name, data, ordinal)
    GROUP BY n.tenant
    ON CONFLICT (tenant, position) DO UPDATE SET entries = ingot.join_entries(events.entries, excluded.entries);
END
$$;

-- The data of an event about a blob, as JSON.
CREATE OR REPLACE FUNCTION ingot.blob_event_data(
    of_blob bytea, of_size bigint, of_key text, of_type text, of_job uuid, of_name text
) RETURNS text
LANGUAGE sql STABLE  -- One expression, which is inlined into the calling statement.
AS $$
    SELECT json_build_object(
        'blob_id', encode(of_blob, 'hex'), 'size', of_size, 'key', of_key, 'content_type', of_type, 'job_id', of_job,
        'name', of_name
    )::text
$$;

-- Check changes one after the other against the quotas. Returns a refusal for each change that exceeds one, and NULL for
-- those that fit. A change that does not increase the usage always fits.
CREATE OR REPLACE FUNCTION ingot.quota_refusals(
    of_tenants uuid[], of_owners text[], more_bytes bigint[], more_owner_bytes bigint[], owner_quotas bigint[], refusals text[]
) RETURNS text[]
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    new_refusals text[] := refusals;
    used jsonb;
    change record;
    tenant_key text;
    owner_key text;
BEGIN
    IF NOT EXISTS (SELECT FROM unnest(owner_quotas) AS q WHERE q IS NOT NULL)
        AND NOT EXISTS (
            SELECT FROM ingot.tenants AS t WHERE t.id = ANY (of_tenants) AND (t.limits::json ->> 'quota_bytes') IS NOT NULL
        ) THEN
        RETURN new_refusals;
    END IF;
    SELECT coalesce(jsonb_object_agg(u.name, u.used), '{}') INTO used FROM (
        SELECT u.tenant || ' ' || u.owner AS name, sum(u.used)::bigint AS used FROM (
            SELECT u.tenant, u.owner, u.bytes + u.reserved + u.deleted AS used FROM ingot.usage AS u
            WHERE u.tenant = ANY (of_tenants) AND (u.owner = '' OR u.owner = ANY (of_owners))
            UNION ALL
            SELECT o.tenant, w.owner, o.bytes FROM ingot.usage_owed AS o CROSS JOIN LATERAL (VALUES (''), (o.owner)) AS w (owner)
            WHERE o.tenant = ANY (of_tenants)
        ) AS u
        GROUP BY 1
    ) AS u;
    FOR change IN
        SELECT a.*, ingot.quota_of(a.tenant) AS quota
        FROM unnest(of_tenants, of_owners, more_bytes, more_owner_bytes, owner_quotas, refusals)
            WITH ORDINALITY AS a (tenant, owner, more_bytes, owner_more, owner_quota, refusal, ordinal)
        WHERE a.refusal IS NULL ORDER BY a.ordinal
    LOOP
        tenant_key := change.tenant || ' ';
        owner_key := change.tenant || ' ' || change.owner;
        IF change.more_bytes > 0 AND coalesce((used ->> tenant_key)::bigint, 0) + change.more_bytes > change.quota THEN
            new_refusals[change.ordinal] := format('IN049 tenant %s %s %s', coalesce(used ->> tenant_key, '0'),
                change.quota, change.more_bytes);
        ELSIF change.owner_more > 0 AND coalesce((used ->> owner_key)::bigint, 0) + change.owner_more > change.owner_quota THEN
            new_refusals[change.ordinal] := format('IN049 token %s %s %s', coalesce(used ->> owner_key, '0'),
                change.owner_quota, change.owner_more);
        ELSE
            used := used || jsonb_build_object(
                tenant_key, coalesce((used ->> tenant_key)::bigint, 0) + change.more_bytes,
                owner_key, coalesce((used ->> owner_key)::bigint, 0) + change.owner_more
            );
        END IF;
    END LOOP;
    RETURN new_refusals;
END
$$;

-- Add to the usage of owners and their tenants, or subtract from it, and publish `quota.warning` when it reaches 80 % of a
-- quota. Removed tenants are not counted.
CREATE OR REPLACE FUNCTION ingot.add_usage(
    of_tenants uuid[], of_owners text[], more_bytes bigint[], more_reserved bigint[], more_keys bigint[],
    more_key_bytes bigint[], owner_quotas bigint[] DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    warned_tenants uuid[];
    warnings text[];
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
        RETURNING u.tenant, nullif(u.owner, '') AS owner, u.bytes + u.reserved + u.deleted AS used,
            c.bytes + c.reserved AS more,
            CASE WHEN u.owner = '' THEN ingot.quota_of(u.tenant) ELSE c.quota END AS quota
    )
    SELECT array_agg(n.tenant), array_agg(row_to_json(n.warning)::text) INTO warned_tenants, warnings FROM (
        SELECT c.tenant, (SELECT n FROM (
            SELECT CASE WHEN c.owner IS NULL THEN 'tenant' ELSE 'token' END AS scope, c.owner, c.used AS usage_bytes,
                c.quota AS quota_bytes
        ) AS n) AS warning
        FROM counted AS c
        WHERE 5::numeric * (c.used - c.more) < 4::numeric * c.quota AND 5::numeric * c.used >= 4::numeric * c.quota
    ) AS n;
    IF warned_tenants IS NOT NULL THEN
        PERFORM ingot.append_blob_events(warned_tenants,
            array_fill('quota.warning'::text, ARRAY[cardinality(warned_tenants)]), warnings);
    END IF;
END
$$;

-- Lock existing blobs that come without a storage key and without bytes, until the transaction ends, and refuse those that
-- do not exist.
CREATE OR REPLACE FUNCTION ingot.lock_blobs(
    of_tenants uuid[], digests bytea[], storage_keys text[], inlines bytea[], refusals text[]
) RETURNS text[]
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM unnest(storage_keys, inlines, refusals) AS a (storage_key, inline, refusal)
        WHERE a.refusal IS NULL AND a.storage_key IS NULL AND a.inline IS NULL
    ) THEN
        RETURN refusals;
    END IF;
    PERFORM FROM unnest(of_tenants, digests) AS a (tenant, digest)
    JOIN ingot.blobs AS b ON b.holder = a.tenant AND b.digest = a.digest ORDER BY b.holder, b.digest FOR KEY SHARE OF b;
    RETURN ARRAY(
        SELECT CASE
            WHEN a.refusal IS NULL AND a.storage_key IS NULL AND a.inline IS NULL AND NOT EXISTS (
                SELECT FROM ingot.blobs AS b WHERE b.holder = a.tenant AND b.digest = a.digest
            ) THEN 'IN048' ELSE a.refusal
        END
        FROM unnest(of_tenants, digests, storage_keys, inlines, refusals)
            WITH ORDINALITY AS a (tenant, digest, storage_key, inline, refusal, ordinal)
        ORDER BY a.ordinal
    );
END
$$;

-- Insert these blobs of tenants if they do not exist; those with a refusal are skipped. Existing bytes stay where they are,
-- unless they are damaged. Objects that are not needed go to the trash; until `sent_untils`, clients may have URLs to send them.
-- The caller holds `lock_usage`, so no other transaction inserts or deletes blobs of these tenants.
CREATE OR REPLACE FUNCTION ingot.store_blobs(
    of_tenants uuid[], of_owners text[], digests bytea[], sha256s bytea[], sizes bigint[], storage_keys text[], inlines bytea[],
    all_checksums bytea[], etags text[], sent_untils bigint[], refusals text[], now bigint
) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    accepted bigint;
    inserted bigint;
BEGIN
    SELECT count(DISTINCT (a.tenant, a.digest)) INTO accepted
    FROM unnest(of_tenants, digests, refusals) AS a (tenant, digest, refusal) WHERE a.refusal IS NULL;
    WITH new_blobs AS MATERIALIZED (
        SELECT DISTINCT ON (a.tenant, a.digest) a.*
        FROM unnest(of_tenants, digests, sha256s, sizes, storage_keys, inlines, all_checksums, etags, sent_untils, refusals)
            WITH ORDINALITY AS a (tenant, digest, sha256, size, place, inline, checks, etag, sent_until, refusal, ordinal)
        WHERE a.refusal IS NULL ORDER BY a.tenant, a.digest, a.ordinal
    ),
    inserted_blobs AS (
        INSERT INTO ingot.blobs (holder, digest, sha256, size, place, verified_at, etag, sent_until)
        SELECT n.tenant, n.digest, n.sha256, n.size, n.place, now, n.etag, CASE WHEN n.place IS NULL THEN 0 ELSE n.sent_until END
        FROM new_blobs AS n
        ON CONFLICT (holder, digest) DO NOTHING
        RETURNING holder, digest, size
    ),
    added_totals AS (
        INSERT INTO ingot.blob_totals (blobs, bytes)
        SELECT count(*), sum(m.size) FROM inserted_blobs AS m HAVING count(*) > 0
    )
    INSERT INTO ingot.blob_contents (holder, digest, inline, checks)
    SELECT n.tenant, n.digest, CASE WHEN n.place IS NULL THEN n.inline END, n.checks FROM new_blobs AS n
    WHERE ((n.tenant, n.digest) IN (SELECT m.holder, m.digest FROM inserted_blobs AS m)) IS TRUE;  -- A lookup, not a join.
    GET DIAGNOSTICS inserted = ROW_COUNT;
    IF inserted < accepted THEN
        PERFORM ingot.repair_blobs(of_tenants, of_owners, digests, storage_keys, inlines, all_checksums, etags, sent_untils,
            refusals, now);
    END IF;
    IF NOT EXISTS (SELECT FROM unnest(storage_keys) AS k WHERE k IS NOT NULL) THEN
        RETURN;
    END IF;
    -- Objects of bytes that are stored elsewhere.
    PERFORM ingot.trash_objects(array_agg(a.place), array_fill(NULL::text, ARRAY[count(*)::integer]), array_agg(a.tenant),
        array_agg(a.owner), array_agg(a.size), array_agg(a.sent_until))
    FROM unnest(of_tenants, of_owners, digests, sizes, storage_keys, sent_untils, refusals)
        AS a (tenant, owner, digest, size, place, sent_until, refusal)
    JOIN ingot.blobs AS b ON b.holder = a.tenant AND b.digest = a.digest
    WHERE a.refusal IS NULL AND a.place IS NOT NULL AND a.place IS DISTINCT FROM b.place HAVING count(*) > 0;
END
$$;

-- Replace the bytes of those of these blobs that are damaged. Damaged objects go to the trash, unless another tenant has them.
CREATE OR REPLACE FUNCTION ingot.repair_blobs(
    of_tenants uuid[], of_owners text[], digests bytea[], storage_keys text[], inlines bytea[], all_checksums bytea[],
    etags text[], sent_untils bigint[], refusals text[], now bigint
) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    repair record;
BEGIN
    FOR repair IN
        SELECT DISTINCT ON (a.tenant, a.digest) a.*, b.place AS old_place, b.size, b.sent_until AS old_sent_until
        FROM unnest(of_tenants, of_owners, digests, storage_keys, inlines, all_checksums, etags, sent_untils, refusals)
            WITH ORDINALITY AS a (tenant, owner, digest, place, inline, checks, etag, sent_until, refusal, ordinal)
        JOIN ingot.blobs AS b ON b.holder = a.tenant AND b.digest = a.digest
        WHERE b.damaged AND a.refusal IS NULL AND (a.place IS NOT NULL OR a.inline IS NOT NULL)
        ORDER BY a.tenant, a.digest, a.ordinal
    LOOP
        UPDATE ingot.blobs AS b SET place = repair.place, damaged = false, verified_at = now, etag = repair.etag,
            sent_until = CASE WHEN repair.place IS NULL THEN 0 ELSE repair.sent_until END
        WHERE b.holder = repair.tenant AND b.digest = repair.digest;
        UPDATE ingot.blob_contents AS c
        SET inline = CASE WHEN repair.place IS NULL THEN repair.inline END, checks = repair.checks
        WHERE c.holder = repair.tenant AND c.digest = repair.digest;
        IF repair.old_place IS NOT NULL AND repair.old_place IS DISTINCT FROM repair.place
            AND NOT EXISTS (SELECT FROM ingot.blobs AS b WHERE b.place = repair.old_place) THEN
            PERFORM ingot.trash_objects(ARRAY[repair.old_place], ARRAY[NULL::text], ARRAY[repair.tenant], ARRAY[repair.owner],
                ARRAY[repair.size], ARRAY[repair.old_sent_until]);
        END IF;
    END LOOP;
END
$$;

-- Why a key that names this blob, or none, cannot be set: `if_match` is the blob that it must name, '*' allows any state, and
-- NULL requires that the key does not exist. One expression, so that it is inlined.
CREATE OR REPLACE FUNCTION ingot.if_match_refusal(of_key text, of_blob bytea, if_match text) RETURNS text
LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE
        WHEN if_match = '*' THEN NULL
        WHEN if_match IS NULL THEN 'IN061 ' || of_key
        WHEN of_blob IS NULL OR encode(of_blob, 'hex') <> if_match THEN 'IN062'
    END
$$;

-- The same for a key that is looked up.
CREATE OR REPLACE FUNCTION ingot.key_refusal(of_tenant uuid, of_key text, if_match text) RETURNS text
LANGUAGE sql STABLE
AS $$
    SELECT ingot.if_match_refusal(k.key, k.blob, if_match)
    FROM (SELECT) AS one_row LEFT JOIN ingot.keys AS k ON k.tenant = of_tenant AND k.key = of_key WHERE of_key IS NOT NULL
$$;

-- Store blobs without a refusal, each for a key, a job or an upload; `released_bytes` is the reservation that each gives
-- back. Returns the refusals, including new ones. The caller holds `lock_usage`, and all keys are different. Outputs cause
-- no event before their attempt has succeeded, and checkpoints none at all.
CREATE OR REPLACE FUNCTION ingot.accept_blobs(
    refusals text[], of_tenants uuid[], of_owners text[], of_uploads uuid[], of_keys text[], of_jobs uuid[], of_kinds text[],
    of_names text[], digests bytea[], sha256s bytea[], sizes bigint[], storage_keys text[], inlines bytea[],
    all_checksums bytea[], etags text[], sent_untils bigint[],
    content_types text[], original_names text[], released_bytes bigint[], owner_quotas bigint[], now bigint
) RETURNS text[]
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    more_bytes bigint[];
    more_owner_bytes bigint[];
    old_owners text[];
    old_sizes bigint[];
    old_blobs bytea[];
    needs_deleted boolean;
    new_refusals text[];
BEGIN
    -- A replaced blob that has no other reference becomes deleted bytes, and a deleted one is needed again.
    SELECT array_agg(a.size - a.released_bytes - coalesce(k.size, f.size, 0) + d.bytes - coalesce(t.size, 0) ORDER BY a.ordinal),
        array_agg(a.size - a.released_bytes - CASE a.owner WHEN k.owner THEN k.size WHEN f.owner THEN f.size ELSE 0 END
            + CASE a.owner WHEN coalesce(k.owner, f.owner) THEN d.bytes ELSE 0 END
            - CASE a.owner WHEN t.owner THEN t.size ELSE 0 END ORDER BY a.ordinal),
        array_agg(k.owner ORDER BY a.ordinal), array_agg(k.size ORDER BY a.ordinal), array_agg(k.blob ORDER BY a.ordinal),
        bool_or(t.digest IS NOT NULL)
    INTO more_bytes, more_owner_bytes, old_owners, old_sizes, old_blobs, needs_deleted
    FROM unnest(of_tenants, of_owners, of_keys, of_jobs, of_kinds, of_names, digests, sizes, released_bytes)
        WITH ORDINALITY AS a (tenant, owner, key, job, kind, name, digest, size, released_bytes, ordinal)
    LEFT JOIN ingot.keys AS k ON k.tenant = a.tenant AND k.key = a.key
    LEFT JOIN ingot.job_files AS f ON f.job = a.job AND f.kind = a.kind AND f.name = a.name AND a.kind <> 'output'
    LEFT JOIN ingot.tombstones AS t ON t.holder = a.tenant AND t.digest = a.digest
    CROSS JOIN LATERAL (
        SELECT CASE
            WHEN coalesce(k.blob, f.blob, a.digest) = a.digest THEN 0  -- Nothing is replaced: no references are counted.
            WHEN ingot.count_references(a.tenant, coalesce(k.blob, f.blob)) = 1 THEN coalesce(k.size, f.size)
            ELSE 0
        END AS bytes
        OFFSET 0
    ) AS d;
    new_refusals := ingot.lock_blobs(of_tenants, digests, storage_keys, inlines, refusals);
    new_refusals := ingot.quota_refusals(of_tenants, of_owners, more_bytes, more_owner_bytes, owner_quotas, new_refusals);
    IF array_position(new_refusals, NULL) IS NULL THEN
        RETURN new_refusals;
    END IF;
    PERFORM ingot.store_blobs(of_tenants, of_owners, digests, sha256s, sizes, storage_keys, inlines, all_checksums, etags,
        sent_untils, new_refusals, now);
    WITH new_keys AS MATERIALIZED (
        SELECT a.* FROM unnest(
            new_refusals, of_tenants, of_owners, of_uploads, of_keys, digests, sha256s, sizes, content_types,
                original_names
        ) AS a (refusal, tenant, owner, upload, key, digest, sha256, size, content_type, original_name)
        WHERE a.refusal IS NULL AND a.key IS NOT NULL
    )
    INSERT INTO ingot.keys AS k (
        tenant, key, blob, sha256, size, content_type, original_name, owner, uploaded_at, upload
    )
    SELECT t.tenant, t.key, t.digest, t.sha256, t.size, t.content_type, t.original_name, t.owner, now, t.upload FROM new_keys AS t
    ON CONFLICT (tenant, key) DO UPDATE SET
        blob = excluded.blob, sha256 = excluded.sha256, size = excluded.size, content_type = excluded.content_type,
        original_name = excluded.original_name, owner = excluded.owner, uploaded_at = excluded.uploaded_at,
        upload = excluded.upload;
    IF needs_deleted THEN
        PERFORM ingot.unbury(array_agg(a.tenant), array_agg(a.digest))
        FROM unnest(new_refusals, of_tenants, digests) AS a (refusal, tenant, digest) WHERE a.refusal IS NULL;
    END IF;
    PERFORM ingot.bury(array_agg(a.tenant), array_agg(a.old_blob), array_agg(a.old_owner), now)
    FROM unnest(new_refusals, of_tenants, digests, old_blobs, old_owners) AS a (refusal, tenant, digest, old_blob, old_owner)
    WHERE a.refusal IS NULL AND a.old_blob <> a.digest HAVING count(*) > 0;
    PERFORM ingot.append_blob_events(
        array_agg(t.tenant ORDER BY t.ordinal), array_agg('blob.stored'::text),
        array_agg(ingot.blob_event_data(t.digest, t.size, t.key, t.content_type, t.job, t.name) ORDER BY t.ordinal)
    )
    FROM unnest(new_refusals, of_tenants, digests, sizes, of_keys, content_types, of_jobs, of_kinds, of_names)
        WITH ORDINALITY AS t (refusal, tenant, digest, size, key, content_type, job, kind, name, ordinal)
    WHERE t.refusal IS NULL AND coalesce(t.kind, '') NOT IN ('output', 'checkpoint') HAVING count(*) > 0;
    PERFORM ingot.add_usage(
        array_agg(c.tenant), array_agg(c.owner), array_agg(c.bytes), array_agg(c.reserved), array_agg(c.keys),
        array_agg(c.key_bytes), array_agg(c.quota)
    )
    FROM unnest(new_refusals, of_tenants, of_owners, sizes, released_bytes, of_keys, old_owners, old_sizes, owner_quotas)
        AS t (refusal, tenant, owner, size, released_bytes, key, old_owner, old_size, quota)
    CROSS JOIN LATERAL (
        SELECT t.tenant, t.owner, t.size AS bytes, -t.released_bytes AS reserved, (t.key IS NOT NULL)::integer::bigint AS keys,
            CASE WHEN t.key IS NULL THEN 0 ELSE t.size END AS key_bytes, t.quota
        UNION ALL
        SELECT t.tenant, t.old_owner, -t.old_size, 0, -1, -t.old_size, NULL WHERE t.old_owner IS NOT NULL
    ) AS c
    WHERE t.refusal IS NULL;
    RETURN new_refusals;
END
$$;

-- The usage of a tenant, or of an owner in it, and the quota of the tenant.
CREATE OR REPLACE FUNCTION ingot.get_usage(of_tenant uuid, of_owner text)
RETURNS TABLE (
    bytes bigint, reserved bigint, keys bigint, key_bytes bigint, quota bigint, deleted bigint,
    blobs_from bigint, blobs_by bigint, objects_from bigint, objects_by bigint
)
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
        CASE WHEN of_owner = '' THEN ingot.quota_of(of_tenant) END, coalesce(u.deleted, 0),
        (SELECT min(t.at) FROM ingot.tombstones AS t WHERE t.holder = of_tenant) + ingot.collect_grace(),
        (SELECT max(t.at) FROM ingot.tombstones AS t WHERE t.holder = of_tenant) + ingot.collect_grace(),
        (SELECT min(o.sent_until) FROM ingot.trash AS o WHERE o.holder = of_tenant),
        (SELECT max(o.sent_until) FROM ingot.trash AS o WHERE o.holder = of_tenant)
    FROM (SELECT) AS one_row LEFT JOIN ingot.usage AS u ON u.tenant = of_tenant AND u.owner = of_owner
$$;
