-- What answers orders: the job that exists already, or a new one. All decisions about idempotency keys, dedupe keys and
-- reuse are made here; `ingot.enqueue` only leaves out orders whose keys are taken. An order finds those before it in the
-- same call. Refuses what stands in the way, as an application is told.
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
    one record;
    -- The places of the first new orders with each id and key; ids and keys go by their rank.
    first_ids integer[] := array_fill(NULL::integer, ARRAY[cardinality(ids)]);
    first_made integer[] := first_ids;
    first_alike integer[] := first_ids;
    first_holders integer[] := first_ids;
    holder uuid;
BEGIN
    FOR one IN
        SELECT o.*, k.job AS made, k.digest AS made_digest, d.job AS holder, j.tenant AS owner, t.id IS NOT NULL AS known,
            r.job AS reusable, dense_rank() OVER (ORDER BY o.id) AS id_rank,
            dense_rank() OVER (ORDER BY o.tenant, o.type, o.idempotency_key) AS made_rank,
            dense_rank() OVER (ORDER BY o.tenant, o.type, o.reuse_key) AS alike_rank,
            dense_rank() OVER (ORDER BY o.tenant, o.dedupe_key) AS holds_rank
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
        place := one.n;
        answer := one.id;
        is_new := true;
        is_reused := false;
        IF NOT one.known THEN
            PERFORM ingot.refuse('IN006', 'there is no such tenant');
        ELSIF one.owner = one.tenant THEN
            is_new := false;
        ELSIF one.owner IS NOT NULL THEN
            PERFORM ingot.refuse('IN073', 'the id of the order belongs to another job');
        ELSIF first_ids[one.id_rank] IS NULL THEN
            IF one.idempotency_key IS NOT NULL AND (one.made IS NOT NULL OR first_made[one.made_rank] IS NOT NULL) THEN
                IF coalesce(digests[first_made[one.made_rank]], one.made_digest) <> one.digest THEN
                    PERFORM ingot.refuse_app('IN042', 'idempotency_mismatch',
                        'This idempotency key was used before, for something else.',
                        'Use a new key for something new; nothing was changed.', jsonb_build_object('place', place));
                END IF;
                answer := coalesce(ids[first_made[one.made_rank]], one.made);
                is_new := false;
            ELSIF one.reuse_key IS NOT NULL AND one.force IS NOT TRUE
                AND (one.reusable IS NOT NULL OR first_alike[one.alike_rank] IS NOT NULL) THEN
                answer := coalesce(ids[first_alike[one.alike_rank]], one.reusable);
                is_new := false;
                is_reused := true;
            ELSE
                IF one.dedupe_key IS NOT NULL THEN
                    holder := coalesce(one.holder, ids[first_holders[one.holds_rank]]);
                    IF holder IS NOT NULL THEN
                        PERFORM ingot.refuse_app('IN005', 'duplicate_job',
                            format('the unfinished job %s holds this dedupe key', holder),
                            'Wait for the holder to finish, or cancel it; nothing was changed.',
                            jsonb_build_object('holder_id', holder, 'place', place));
                    END IF;
                END IF;
                first_ids[one.id_rank] := place;
                first_made[one.made_rank] := coalesce(first_made[one.made_rank], place);
                first_alike[one.alike_rank] := place;
                first_holders[one.holds_rank] := place;
            END IF;
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;
