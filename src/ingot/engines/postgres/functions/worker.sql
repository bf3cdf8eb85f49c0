-- What the role of a worker may call. Its tenant is the one its role was made for, whatever it says.
CREATE OR REPLACE FUNCTION ingot.worker_tenant() RETURNS uuid
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    found uuid := (SELECT w.tenant FROM ingot.worker_roles AS w WHERE w.role = session_user);
BEGIN
    IF found IS NULL THEN
        RAISE EXCEPTION 'the role % is no worker of any tenant', session_user USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN found;
END
$$;

CREATE OR REPLACE FUNCTION ingot.worker_claim(
    types text[], worker_id text, host text, pid bigint, jobs integer, lease_length bigint
) RETURNS TABLE (id text, type text, payload bytea, attempts integer, fence bigint, expires_at bigint)
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT c.id, c.type, c.payload, c.attempts, c.fence, c.expires_at
    FROM (SELECT ingot.worker_tenant() AS tenant, cardinality(types) AS n OFFSET 0) AS w
    CROSS JOIN LATERAL ingot.claim(
        types, array_fill(w.tenant, ARRAY[w.n]), array_fill(''::text, ARRAY[w.n]),
        array_fill(0::smallint, ARRAY[w.n]), array_fill(0::bigint, ARRAY[w.n]),
        array_fill('00000000-0000-0000-0000-000000000000'::uuid, ARRAY[w.n]),
        ARRAY[worker_id], ARRAY[host], ARRAY[pid], ARRAY[jobs], ARRAY[lease_length]
    ) AS c
$$;

CREATE OR REPLACE FUNCTION ingot.worker_renew(
    ids uuid[], fences bigint[], lease_lengths bigint[], percents double precision[], stages text[]
) RETURNS TABLE (place integer, expires_at bigint, cancel_requested boolean)
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT r.* FROM (SELECT ingot.worker_tenant() AS tenant OFFSET 0) AS w
    CROSS JOIN LATERAL ingot.renew(
        ids, fences, array_fill(w.tenant, ARRAY[cardinality(ids)]), lease_lengths, percents, stages
    ) AS r
$$;

CREATE OR REPLACE FUNCTION ingot.worker_settle(
    ids uuid[], fences bigint[], outcomes text[], retries boolean[], delays bigint[], exit_codes bigint[],
    errors text[], results bytea[]
) RETURNS TABLE (place integer, status text, attempts integer, run_at bigint)
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT s.place, s.status, s.attempts, s.run_at FROM (SELECT ingot.worker_tenant() AS tenant OFFSET 0) AS w
    CROSS JOIN LATERAL ingot.settle(
        ids, fences, array_fill(w.tenant, ARRAY[cardinality(ids)]), outcomes, retries, delays, exit_codes, errors, results
    ) AS s
$$;
