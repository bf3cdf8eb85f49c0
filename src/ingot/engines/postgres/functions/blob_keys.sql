-- Set keys, all different, each to a blob that comes with it. Returns by the ordinal of the parameters, counted from 1, when
-- the key was set, or a refusal. A call that is repeated after its answer was lost finds its own row.
CREATE OR REPLACE FUNCTION ingot.put_blobs(
    ids uuid[], of_tenants uuid[], of_owners text[], names text[], if_matches text[],
    digests bytea[], sha256s bytea[], sizes bigint[], storage_keys text[], inlines bytea[], all_checksums bytea[],
    content_types text[], original_names text[], owner_quotas bigint[]
) RETURNS TABLE (ordinal bigint, refusal text, uploaded_at bigint)
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
    stored_ats bigint[];
    nulls uuid[] := array_fill(NULL::uuid, ARRAY[cardinality(ids)]);
    zeros bigint[] := array_fill(0::bigint, ARRAY[cardinality(ids)]);
BEGIN
    PERFORM ingot.lock_usage(of_tenants);
    now := ingot.clock();
    SELECT array_agg(CASE
            WHEN NOT EXISTS (SELECT FROM ingot.tenants AS t WHERE t.id = a.tenant) THEN 'IN006'
            WHEN k.upload = a.id AND k.blob = a.digest THEN 'same'
            ELSE ingot.if_match_refusal(k.key, k.blob, a.if_match)
        END ORDER BY a.ordinal),
        array_agg(CASE WHEN k.upload = a.id AND k.blob = a.digest THEN k.uploaded_at END ORDER BY a.ordinal)
    INTO refusals, stored_ats
    FROM unnest(ids, of_tenants, names, if_matches, digests) WITH ORDINALITY AS a (id, tenant, key, if_match, digest, ordinal)
    LEFT JOIN ingot.keys AS k ON k.tenant = a.tenant AND k.key = a.key;
    refusals := ingot.accept_blobs(
        refusals, of_tenants, of_owners, ids, names, nulls, nulls::text[], nulls::text[], digests, sha256s, sizes,
        storage_keys, inlines, all_checksums, nulls::text[], zeros, content_types, original_names, zeros, owner_quotas, now
    );
    RETURN QUERY
    SELECT r.ordinal, nullif(r.refusal, 'same'), coalesce(r.stored_at, now)
    FROM unnest(refusals, stored_ats) WITH ORDINALITY AS r (refusal, stored_at, ordinal);
END
$$;

-- Delete keys, subtract their usage, and publish events if `with_events` is true. The caller holds `lock_usage`.
CREATE OR REPLACE FUNCTION ingot.drop_keys(of_tenants uuid[], names text[], now bigint, with_events boolean)
RETURNS SETOF ingot.keys
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    deleted_keys ingot.keys[];
BEGIN
    WITH dropped AS (
        DELETE FROM ingot.keys AS k USING unnest(of_tenants, names) AS a (tenant, name)
        WHERE k.tenant = a.tenant AND k.key = a.name RETURNING k
    )
    SELECT array_agg(d.k) INTO deleted_keys FROM dropped AS d;
    IF deleted_keys IS NULL THEN
        RETURN;
    END IF;
    PERFORM ingot.bury(array_agg(k.tenant), array_agg(k.blob), array_agg(k.owner), now) FROM unnest(deleted_keys) AS k;
    IF with_events THEN
        PERFORM ingot.append_blob_events(
            array_agg(k.tenant), array_agg('blob.deleted'::text),
            array_agg(ingot.blob_event_data(k.blob, k.size, k.key, k.content_type, NULL, NULL))
        )
        FROM (SELECT k.* FROM unnest(deleted_keys) AS k ORDER BY k.tenant, k.key) AS k;
    END IF;
    PERFORM ingot.add_usage(
        array_agg(k.tenant), array_agg(k.owner), array_agg(-k.size), array_agg(0::bigint), array_agg(-1::bigint),
        array_agg(-k.size)
    )
    FROM unnest(deleted_keys) AS k;
    RETURN QUERY SELECT k.* FROM unnest(deleted_keys) AS k;
END
$$;

-- Delete keys, all different. Returns by ordinal what each key was, or a refusal.
CREATE OR REPLACE FUNCTION ingot.delete_keys(of_tenants uuid[], names text[], if_matches text[])
RETURNS TABLE (
    ordinal bigint, refusal text, blob bytea, sha256 bytea, size bigint, content_type text, original_name text, owner text,
    uploaded_at bigint
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
    now bigint;
    refusals text[];
    existing_keys ingot.keys[];
BEGIN
    PERFORM ingot.lock_usage(of_tenants);
    now := ingot.clock();
    -- The tenants are locked, so the keys that are read here are those that are deleted.
    SELECT array_agg(CASE
            WHEN NOT EXISTS (SELECT FROM ingot.tenants AS t WHERE t.id = a.tenant) THEN 'IN006'
            WHEN k.key IS NULL THEN 'IN063'
            WHEN a.if_match <> '*' AND encode(k.blob, 'hex') <> a.if_match THEN 'IN062'
        END ORDER BY a.ordinal), array_agg(k ORDER BY a.ordinal)
    INTO refusals, existing_keys
    FROM unnest(of_tenants, names, if_matches) WITH ORDINALITY AS a (tenant, key, if_match, ordinal)
    LEFT JOIN ingot.keys AS k ON k.tenant = a.tenant AND k.key = a.key;
    PERFORM FROM (
        SELECT array_agg(a.tenant) AS tenants, array_agg(a.name) AS names
        FROM unnest(of_tenants, names, refusals) AS a (tenant, name, refusal) WHERE a.refusal IS NULL
    ) AS a CROSS JOIN LATERAL ingot.drop_keys(a.tenants, a.names, now, true) AS d;
    RETURN QUERY
    SELECT a.ordinal, a.refusal, a.blob, a.sha256, a.size, a.content_type, a.original_name, a.owner, a.uploaded_at
    FROM unnest(refusals, existing_keys) WITH ORDINALITY AS a (
        refusal, tenant, key, blob, sha256, size, content_type, original_name, owner, uploaded_at, upload, ordinal
    );
END
$$;

-- Delete up to `keys_max` keys of a tenant, of one owner or of all, with an audit entry. A call that is repeated after its
-- answer was lost finds the audit entry.
CREATE OR REPLACE FUNCTION ingot.purge_keys(of_tenant uuid, of_owner text, keys_max integer, act json)
RETURNS TABLE (keys bigint, bytes bigint)
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
    names text[];
    result json;
BEGIN
    PERFORM ingot.expect_tenant(of_tenant);
    PERFORM ingot.lock_usage(ARRAY[of_tenant]);
    SELECT a.after::json INTO result FROM ingot.audit AS a
    WHERE a.id = (act ->> 'id')::uuid AND a.tenant = of_tenant AND a.action = 'keys.purged';
    IF NOT FOUND THEN
        IF of_owner IS NULL THEN
            names := ARRAY(SELECT k.key FROM ingot.keys AS k WHERE k.tenant = of_tenant ORDER BY k.key LIMIT keys_max);
        ELSE
            names := ARRAY(
                SELECT k.key FROM ingot.keys AS k WHERE k.tenant = of_tenant AND k.owner = of_owner ORDER BY k.key LIMIT keys_max
            );
        END IF;
        SELECT json_build_object('owner', of_owner, 'keys', count(*), 'bytes', coalesce(sum(d.size), 0)) INTO result
        FROM ingot.drop_keys(array_fill(of_tenant, ARRAY[cardinality(names)]), names, ingot.clock(), true) AS d;
        IF cardinality(names) > 0 THEN
            PERFORM ingot.add_audit_entry(act, of_tenant, 'keys.purged', 'keys/' || coalesce(of_owner, '*'), NULL, result);
        END IF;
    END IF;
    RETURN QUERY SELECT (result ->> 'keys')::bigint, (result ->> 'bytes')::bigint;
END
$$;

-- A key, and the bytes or the storage key of its blob.
CREATE OR REPLACE FUNCTION ingot.open_key(of_tenant uuid, of_key text)
RETURNS TABLE (
    key text, blob bytea, content_type text, original_name text, owner text, uploaded_at bigint,
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
    SELECT k.key, k.blob, k.content_type, k.original_name, k.owner, k.uploaded_at,
        b.digest, b.sha256, b.size, b.place, b.damaged, c.inline, c.checks, b.holder::text, b.etag
    FROM ingot.keys AS k JOIN ingot.blobs AS b ON b.holder = k.tenant AND b.digest = k.blob
    JOIN ingot.blob_contents AS c ON c.holder = k.tenant AND c.digest = k.blob
    WHERE k.tenant = of_tenant AND k.key = of_key
$$;
