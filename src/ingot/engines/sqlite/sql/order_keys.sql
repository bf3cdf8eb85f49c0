-- Keys that find the existing job of an order: idempotency, dedupe and reuse keys.

-- name: jobs_by_idempotency_key
-- The jobs that were created with these keys: index in the array, job number, and hexadecimal digest of the payload.
SELECT CAST(json_group_array(json_array(item.key, k.job, hex(k.digest))) AS BLOB)
FROM json_each(?) AS item CROSS JOIN idempotency_keys AS k
    ON k.tenant = item.value ->> 0 AND k.type = item.value ->> 1 AND k.key = item.value ->> 2

-- name: insert_idempotency_keys
INSERT INTO idempotency_keys (tenant, type, key, job, digest) VALUES (?, ?, ?, ?, ?)

-- name: remove_idempotency_keys
-- Free the idempotency keys of these jobs (a JSON array of numbers).
DELETE FROM idempotency_keys WHERE (tenant, type, key) IN (
    SELECT s.tenant, s.type, j.idempotency_key
    FROM json_each(?) AS item
    CROSS JOIN jobs AS j ON j.number = item.value CROSS JOIN states AS s ON s.number = j.number
    WHERE j.idempotency_key IS NOT NULL
)

-- name: clear_idempotency_keys
DELETE FROM idempotency_keys WHERE (tenant, type, key) IN (SELECT tenant, type, key FROM idempotency_keys WHERE tenant = ?1 LIMIT ?2)

-- name: jobs_by_dedupe_key
-- The unfinished jobs that hold these keys: index in the array and job ID.
SELECT CAST(json_group_array(json_array(item.key, s.id)) AS BLOB)
FROM json_each(?) AS item CROSS JOIN states AS s INDEXED BY states_dedupe
    ON s.tenant = item.value ->> 0 AND s.dedupe_key = item.value ->> 1
    AND s.dedupe_key IS NOT NULL AND s.status IN ('blocked', 'queued', 'running')

-- name: jobs_by_reuse_key
-- The jobs that can be reused for these keys (in hexadecimal): index in the array and job number.
SELECT CAST(json_group_array(json_array(item.key, k.job)) AS BLOB)
FROM json_each(?) AS item CROSS JOIN reuse_keys AS k
    ON k.tenant = item.value ->> 0 AND k.type = item.value ->> 1 AND k.key = unhex(item.value ->> 2)
CROSS JOIN states AS s ON s.number = k.job
WHERE s.status NOT IN ('dead', 'canceled')

-- name: insert_reuse_keys
INSERT OR REPLACE INTO reuse_keys (tenant, type, key, job) VALUES (?, ?, ?, ?)

-- name: remove_reuse_keys
-- Exclude these jobs (a JSON array of numbers) from reuse.
DELETE FROM reuse_keys WHERE (tenant, type, key, job) IN (
    SELECT s.tenant, s.type, j.reuse_key, j.number
    FROM json_each(?) AS item
    CROSS JOIN jobs AS j ON j.number = item.value CROSS JOIN states AS s ON s.number = j.number
    WHERE j.reuse_key IS NOT NULL
)

-- name: clear_reuse_keys
DELETE FROM reuse_keys WHERE (tenant, type, key) IN (SELECT tenant, type, key FROM reuse_keys WHERE tenant = ?1 LIMIT ?2)
