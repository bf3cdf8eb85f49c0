-- Deleted blobs and objects. Their bytes count until they are gone.

-- Add to the deleted bytes of owners and their tenants, or subtract from them. Removed tenants are only counted in the totals.
-- The caller holds `lock_usage`.
CREATE OR REPLACE FUNCTION ingot.add_deleted(of_tenants uuid[], of_owners text[], sizes bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    INSERT INTO ingot.usage (tenant, owner)
    SELECT DISTINCT c.tenant, c.owner FROM unnest(of_tenants, of_owners, sizes) AS c (tenant, owner, size)
    WHERE c.size > 0 AND EXISTS (SELECT FROM ingot.tenants AS t WHERE t.id = c.tenant)
        AND NOT EXISTS (SELECT FROM ingot.usage AS u WHERE u.tenant = c.tenant AND u.owner = c.owner)
    ON CONFLICT DO NOTHING;
    UPDATE ingot.usage AS u SET deleted = u.deleted + c.size
    FROM (
        SELECT c.tenant, o.owner, sum(c.size) AS size FROM unnest(of_tenants, of_owners, sizes) AS c (tenant, owner, size)
        CROSS JOIN LATERAL (SELECT '' UNION SELECT c.owner) AS o (owner)
        WHERE EXISTS (SELECT FROM ingot.tenants AS t WHERE t.id = c.tenant)
        GROUP BY c.tenant, o.owner
    ) AS c
    WHERE u.tenant = c.tenant AND u.owner = c.owner;
    INSERT INTO ingot.blob_totals (blobs, bytes, deleted)
    SELECT 0, 0, sum(c.size) FROM unnest(sizes) AS c (size) HAVING sum(c.size) <> 0;
END
$$;

-- How many keys, job files and done uploads of a tenant refer to a blob, up to two. An unfinished upload that announced a blob
-- is not counted: it would keep bytes that count against no quota.
CREATE OR REPLACE FUNCTION ingot.count_references(of_tenant uuid, of_blob bytea) RETURNS bigint
LANGUAGE sql STABLE
AS $$
    SELECT count(*) FROM (
        (SELECT FROM ingot.keys AS k WHERE k.blob = of_blob AND k.tenant = of_tenant LIMIT 2)
        UNION ALL
        (SELECT FROM ingot.job_files AS f WHERE f.blob = of_blob AND f.tenant = of_tenant LIMIT 2)
        UNION ALL
        (
            SELECT FROM ingot.uploads AS u WHERE u.blob = of_blob AND u.tenant = of_tenant AND u.blob IS NOT NULL AND u.refers
                AND u.state = 'done' LIMIT 2
        )
        LIMIT 2
    ) AS r
$$;

-- Leave tombstones for those of these blobs that have lost their last reference. Of several owners that lost references in one
-- transaction, the first by name owns the deleted bytes. The caller has deleted the references, and holds `lock_usage`.
CREATE OR REPLACE FUNCTION ingot.bury(of_tenants uuid[], digests bytea[], of_owners text[], now bigint) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    buried ingot.tombstones[];
BEGIN
    WITH inserted AS (
        INSERT INTO ingot.tombstones AS t (holder, digest, at, owner, size)
        SELECT DISTINCT ON (a.tenant, a.digest) a.tenant, a.digest, now, a.owner, b.size
        FROM unnest(of_tenants, digests, of_owners) AS a (tenant, digest, owner)
        JOIN ingot.blobs AS b ON b.holder = a.tenant AND b.digest = a.digest
        WHERE ingot.count_references(a.tenant, a.digest) = 0
        ORDER BY a.tenant, a.digest, a.owner COLLATE "C"
        ON CONFLICT DO NOTHING RETURNING t
    )
    SELECT array_agg(i.t) INTO buried FROM inserted AS i;
    IF buried IS NOT NULL THEN
        PERFORM ingot.add_deleted(array_agg(t.holder), array_agg(t.owner), array_agg(t.size)) FROM unnest(buried) AS t;
    END IF;
END
$$;

-- Remove the tombstones of blobs that have a reference again. The caller holds `lock_usage`.
CREATE OR REPLACE FUNCTION ingot.unbury(of_tenants uuid[], digests bytea[]) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    removed ingot.tombstones[];
BEGIN
    WITH deleted AS (
        DELETE FROM ingot.tombstones AS t USING unnest(of_tenants, digests) AS a (tenant, digest)
        WHERE t.holder = a.tenant AND t.digest = a.digest RETURNING t
    )
    SELECT array_agg(d.t) INTO removed FROM deleted AS d;
    IF removed IS NOT NULL THEN
        PERFORM ingot.add_deleted(array_agg(t.holder), array_agg(t.owner), array_agg(-t.size)) FROM unnest(removed) AS t;
    END IF;
END
$$;

-- Put objects into the trash. Their sizes count as deleted bytes until they are gone; until `sent_untils`, clients may have URLs
-- to send them. Places that are NULL are skipped. The caller holds `lock_usage`.
CREATE OR REPLACE FUNCTION ingot.trash_objects(
    places text[], multiparts text[], of_tenants uuid[], of_owners text[], sizes bigint[], sent_untils bigint[]
) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    added ingot.trash[];
BEGIN
    WITH inserted AS (
        INSERT INTO ingot.trash AS o (place, multipart, holder, owner, size, sent_until)
        SELECT DISTINCT ON (a.place) a.place, a.multipart, a.tenant, a.owner, a.size, a.sent_until
        FROM unnest(places, multiparts, of_tenants, of_owners, sizes, sent_untils)
            AS a (place, multipart, tenant, owner, size, sent_until)
        WHERE a.place IS NOT NULL ORDER BY a.place, a.multipart NULLS LAST
        ON CONFLICT DO NOTHING RETURNING o
    )
    SELECT array_agg(i.o) INTO added FROM inserted AS i;
    IF added IS NOT NULL THEN
        PERFORM ingot.add_deleted(array_agg(o.holder), array_agg(o.owner), array_agg(o.size)) FROM unnest(added) AS o;
    END IF;
END
$$;

-- Until when a client may send the object of an upload that ends now; 0 if no client can.
CREATE OR REPLACE FUNCTION ingot.sent_until(upload ingot.uploads, now bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE
AS $$ SELECT CASE WHEN upload.url_lifetime > 0 AND upload.multipart IS NULL THEN now + upload.url_lifetime ELSE 0 END $$;

-- How long deleted blobs are kept.
CREATE OR REPLACE FUNCTION ingot.collect_grace() RETURNS bigint
LANGUAGE sql STABLE
AS $$ SELECT coalesce((SELECT o.grace FROM ingot.object_store AS o), {blobs.model.GRACE_MICROS}) $$;
