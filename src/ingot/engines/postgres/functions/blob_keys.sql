-- Set keys, each to a blob that comes with it; no two of one call are the same. Answers by place, counted from 1, when one
-- was set, or why not. The same again, after its answer was lost, finds its own row.
CREATE OR REPLACE FUNCTION ingot.put_blobs(
    ids uuid[], of_tenants uuid[], of_owners text[], names text[], if_matches text[],
    digests bytea[], shas bytea[], sizes bigint[], new_places text[], inlines bytea[], all_checks bytea[],
    content_types text[], original_names text[], owner_quotas bigint[]
) RETURNS TABLE (place bigint, refusal text, uploaded_at bigint)
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
    known bigint[];
    none uuid[] := array_fill(NULL::uuid, ARRAY[cardinality(ids)]);
BEGIN
    PERFORM ingot.lock_usage(of_tenants);
    now := ingot.clock();
    SELECT array_agg(CASE
            WHEN NOT EXISTS (SELECT FROM ingot.tenants AS t WHERE t.id = a.tenant) THEN 'IN006'
            WHEN k.upload = a.id AND k.blob = a.digest THEN 'same'
            ELSE ingot.refusal_of(k.key, k.blob, a.if_match)
        END ORDER BY a.place), array_agg(CASE WHEN k.upload = a.id AND k.blob = a.digest THEN k.uploaded_at END ORDER BY a.place)
    INTO refusals, known
    FROM unnest(ids, of_tenants, names, if_matches, digests) WITH ORDINALITY AS a (id, tenant, key, if_match, digest, place)
    LEFT JOIN ingot.keys AS k ON k.tenant = a.tenant AND k.key = a.key;
    refusals := ingot.take_in(
        refusals, of_tenants, of_owners, ids, names, none, none::text[], none::text[], digests, shas, sizes, new_places,
        inlines, all_checks, content_types, original_names, array_fill(0::bigint, ARRAY[cardinality(ids)]), owner_quotas, now
    );
    RETURN QUERY
    SELECT r.place, nullif(r.refusal, 'same'), coalesce(r.known, now)
    FROM unnest(refusals, known) WITH ORDINALITY AS r (refusal, known, place);
END
$$;

-- Take keys away, give back what they took, and tell of it when somebody is there to hear. The tenants are held.
CREATE OR REPLACE FUNCTION ingot.drop_keys(of_tenants uuid[], names text[], now bigint, tells boolean)
RETURNS SETOF ingot.keys
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    gone ingot.keys[];
BEGIN
    WITH dropped AS (
        DELETE FROM ingot.keys AS k USING unnest(of_tenants, names) AS a (tenant, name)
        WHERE k.tenant = a.tenant AND k.key = a.name RETURNING k
    )
    SELECT array_agg(d.k) INTO gone FROM dropped AS d;
    IF gone IS NULL THEN
        RETURN;
    END IF;
    INSERT INTO ingot.tombstones (digest, at) SELECT DISTINCT k.blob, now FROM unnest(gone) AS k;
    IF tells THEN
        PERFORM ingot.tell_of_blobs(
            array_agg(k.tenant), array_agg('blob.deleted'::text),
            array_agg(ingot.blob_news(k.blob, k.size, k.key, k.content_type, NULL, NULL))
        )
        FROM (SELECT k.* FROM unnest(gone) AS k ORDER BY k.tenant, k.key) AS k;
    END IF;
    PERFORM ingot.add_usage(
        array_agg(k.tenant), array_agg(k.owner), array_agg(-k.size), array_agg(0::bigint), array_agg(-1::bigint),
        array_agg(-k.size)
    )
    FROM unnest(gone) AS k;
    RETURN QUERY SELECT k.* FROM unnest(gone) AS k;
END
$$;

-- Delete keys; no two of one call are the same. Answers by place what each was, or why it stays.
CREATE OR REPLACE FUNCTION ingot.delete_keys(of_tenants uuid[], names text[], if_matches text[])
RETURNS TABLE (
    place bigint, refusal text, blob bytea, sha256 bytea, size bigint, content_type text, original_name text, owner text,
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
    known ingot.keys[];
BEGIN
    PERFORM ingot.lock_usage(of_tenants);
    now := ingot.clock();
    -- They are held, so that what is read is what is deleted.
    SELECT array_agg(CASE
            WHEN NOT EXISTS (SELECT FROM ingot.tenants AS t WHERE t.id = a.tenant) THEN 'IN006'
            WHEN k.key IS NULL THEN 'IN063'
            WHEN a.if_match <> '*' AND encode(k.blob, 'hex') <> a.if_match THEN 'IN062'
        END ORDER BY a.place), array_agg(k ORDER BY a.place)
    INTO refusals, known
    FROM unnest(of_tenants, names, if_matches) WITH ORDINALITY AS a (tenant, key, if_match, place)
    LEFT JOIN ingot.keys AS k ON k.tenant = a.tenant AND k.key = a.key;
    PERFORM FROM (
        SELECT array_agg(a.tenant) AS tenants, array_agg(a.name) AS names
        FROM unnest(of_tenants, names, refusals) AS a (tenant, name, refusal) WHERE a.refusal IS NULL
    ) AS a CROSS JOIN LATERAL ingot.drop_keys(a.tenants, a.names, now, true) AS d;
    RETURN QUERY
    SELECT a.place, a.refusal, a.blob, a.sha256, a.size, a.content_type, a.original_name, a.owner, a.uploaded_at
    FROM unnest(refusals, known) WITH ORDINALITY AS a (
        refusal, tenant, key, blob, sha256, size, content_type, original_name, owner, uploaded_at, upload, place
    );
END
$$;

-- Delete so many keys of a tenant, at most, that an owner has set, or of all owners, on record. The same call sent again,
-- after its answer was lost, finds its act.
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
    was json;
BEGIN
    PERFORM ingot.expect_tenant(of_tenant);
    PERFORM ingot.lock_usage(ARRAY[of_tenant]);
    SELECT a.after::json INTO was FROM ingot.audit AS a
    WHERE a.id = (act ->> 'id')::uuid AND a.tenant = of_tenant AND a.action = 'keys.purged';
    IF NOT FOUND THEN
        IF of_owner IS NULL THEN
            names := ARRAY(SELECT k.key FROM ingot.keys AS k WHERE k.tenant = of_tenant ORDER BY k.key LIMIT keys_max);
        ELSE
            names := ARRAY(
                SELECT k.key FROM ingot.keys AS k WHERE k.tenant = of_tenant AND k.owner = of_owner ORDER BY k.key LIMIT keys_max
            );
        END IF;
        SELECT json_build_object('owner', of_owner, 'keys', count(*), 'bytes', coalesce(sum(d.size), 0)) INTO was
        FROM ingot.drop_keys(array_fill(of_tenant, ARRAY[cardinality(names)]), names, ingot.clock(), true) AS d;
        IF cardinality(names) > 0 THEN
            PERFORM ingot.note_act(act, of_tenant, 'keys.purged', 'keys/' || coalesce(of_owner, '*'), NULL, was);
        END IF;
    END IF;
    RETURN QUERY SELECT (was ->> 'keys')::bigint, (was ->> 'bytes')::bigint;
END
$$;

-- A key, and the bytes of its blob or where they are.
CREATE OR REPLACE FUNCTION ingot.open_key(of_tenant uuid, of_key text)
RETURNS TABLE (
    key text, blob bytea, content_type text, original_name text, owner text, uploaded_at bigint,
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
    SELECT k.key, k.blob, k.content_type, k.original_name, k.owner, k.uploaded_at,
        b.digest, b.sha256, b.size, b.place, b.damaged, c.inline, c.checks
    FROM ingot.keys AS k JOIN ingot.blobs AS b ON b.digest = k.blob JOIN ingot.blob_contents AS c ON c.digest = k.blob
    WHERE k.tenant = of_tenant AND k.key = of_key
$$;
