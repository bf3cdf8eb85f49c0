-- Decide for each order whether a new job or an existing one answers it. All rules of idempotency keys, dedupe keys and
-- reuse are here; `ingot.enqueue` only leaves out orders whose keys are taken. Earlier orders of the same call count as
-- existing jobs. Conflicts are raised with the details that applications get.
CREATE OR REPLACE FUNCTION ingot.resolve_orders(
    ids uuid[], tenants uuid[], types text[], idempotency_keys text[], digests bytea[], dedupe_keys text[], reuse_keys bytea[],
    forces boolean[]
) RETURNS TABLE (place integer, answer uuid, is_new boolean, is_reused boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
    order_row record;
    -- The places of the first new order with each id and key, indexed by the rank of the id or key.
    first_by_id integer[] := array_fill(NULL::integer, ARRAY[cardinality(ids)]);
    first_by_idempotency_key integer[] := first_by_id;
    first_by_reuse_key integer[] := first_by_id;
    first_by_dedupe_key integer[] := first_by_id;
    holder uuid;
BEGIN
    FOR order_row IN
        SELECT o.*, k.job AS existing_job, k.digest AS existing_digest, d.job AS holder, j.tenant AS id_tenant,
            t.id IS NOT NULL AS tenant_exists, r.job AS reusable_job, dense_rank() OVER (ORDER BY o.id) AS id_rank,
            dense_rank() OVER (ORDER BY o.tenant, o.type, o.idempotency_key) AS idempotency_rank,
            dense_rank() OVER (ORDER BY o.tenant, o.type, o.reuse_key) AS reuse_rank,
            dense_rank() OVER (ORDER BY o.tenant, o.dedupe_key) AS dedupe_rank
        FROM unnest(ids, tenants, types, idempotency_keys, digests, dedupe_keys, reuse_keys, forces)
            WITH ORDINALITY AS o (id, tenant, type, idempotency_key, digest, dedupe_key, reuse_key, force, n)
        LEFT JOIN ingot.idempotency_keys AS k ON k.tenant = o.tenant AND k.type = o.type AND k.key = o.idempotency_key
        LEFT JOIN ingot.dedupe_keys AS d ON d.tenant = o.tenant AND d.key = o.dedupe_key
        LEFT JOIN ingot.jobs AS j ON j.id = o.id
        LEFT JOIN ingot.tenants AS t ON t.id = o.tenant
        LEFT JOIN LATERAL (
            SELECT r.job FROM ingot.reuse_keys AS r CROSS JOIN LATERAL (
                SELECT s.status FROM ingot.job_rows AS s WHERE s.id = r.job
            ) AS s
            WHERE r.tenant = o.tenant AND r.type = o.type AND r.key = o.reuse_key AND s.status NOT IN ('dead', 'canceled')
        ) AS r ON true
        ORDER BY o.n
    LOOP
        place := order_row.n;
        answer := order_row.id;
        is_new := true;
        is_reused := false;
        IF NOT order_row.tenant_exists THEN
            PERFORM ingot.refuse('IN006', 'there is no such tenant');
        ELSIF order_row.id_tenant = order_row.tenant THEN
            is_new := false;
        ELSIF order_row.id_tenant IS NOT NULL THEN
            PERFORM ingot.refuse('IN073', 'the id of the order belongs to another job');
        ELSIF first_by_id[order_row.id_rank] IS NULL THEN
            IF order_row.idempotency_key IS NOT NULL
                AND (order_row.existing_job IS NOT NULL OR first_by_idempotency_key[order_row.idempotency_rank] IS NOT NULL) THEN
                IF coalesce(digests[first_by_idempotency_key[order_row.idempotency_rank]],
                    order_row.existing_digest) <> order_row.digest THEN
                    PERFORM ingot.refuse_app('IN042', 'idempotency_mismatch',
                        'This idempotency key was already used for a different request.',
                        'Use a new key for a new request. Nothing was changed.', jsonb_build_object('place', place));
                END IF;
                answer := coalesce(ids[first_by_idempotency_key[order_row.idempotency_rank]], order_row.existing_job);
                is_new := false;
            ELSIF order_row.reuse_key IS NOT NULL AND order_row.force IS NOT TRUE
                AND (order_row.reusable_job IS NOT NULL OR first_by_reuse_key[order_row.reuse_rank] IS NOT NULL) THEN
                answer := coalesce(ids[first_by_reuse_key[order_row.reuse_rank]], order_row.reusable_job);
                is_new := false;
                is_reused := true;
            ELSE
                IF order_row.dedupe_key IS NOT NULL THEN
                    holder := coalesce(order_row.holder, ids[first_by_dedupe_key[order_row.dedupe_rank]]);
                    IF holder IS NOT NULL THEN
                        PERFORM ingot.refuse_app('IN005', 'duplicate_job',
                            format('the unfinished job %s has this dedupe key', holder),
                            'Wait until that job is finished, or cancel it. Nothing was changed.',
                            jsonb_build_object('holder_id', holder, 'place', place));
                    END IF;
                END IF;
                first_by_id[order_row.id_rank] := place;
                first_by_idempotency_key[order_row.idempotency_rank] := coalesce(first_by_idempotency_key[order_row.idempotency_rank], place);
                first_by_reuse_key[order_row.reuse_rank] := place;
                first_by_dedupe_key[order_row.dedupe_rank] := place;
            END IF;
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;
