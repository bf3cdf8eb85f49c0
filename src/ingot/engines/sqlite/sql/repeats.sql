-- Keys by which an order that comes again is known: idempotency, dedupe and reuse.

-- name: jobs_by_idempotency_key
-- Which jobs these keys made: pairs of the asked-for position and the job, with the digest of its payload in hex.
SELECT CAST(json_group_array(json_array(w.key, k.job, hex(k.digest))) AS BLOB)
FROM json_each(?) AS w CROSS JOIN idempotency_keys AS k
    ON k.tenant = w.value ->> 0 AND k.type = w.value ->> 1 AND k.key = w.value ->> 2

-- name: insert_idempotency_keys
INSERT INTO idempotency_keys (tenant, type, key, job, digest) VALUES (?, ?, ?, ?, ?)

-- name: remove_idempotency_keys
-- The keys that made these jobs (a JSON array of numbers) are free.
DELETE FROM idempotency_keys WHERE (tenant, type, key) IN (
    SELECT s.tenant, s.type, j.idempotency_key
    FROM json_each(?) AS w CROSS JOIN jobs AS j ON j.number = w.value CROSS JOIN states AS s ON s.number = j.number
    WHERE j.idempotency_key IS NOT NULL
)

-- name: clear_idempotency_keys
DELETE FROM idempotency_keys WHERE (tenant, type, key) IN (SELECT tenant, type, key FROM idempotency_keys WHERE tenant = ?1 LIMIT ?2)

-- name: jobs_by_dedupe_key
-- Which unfinished jobs hold these keys: pairs of the asked-for position and the holder.
SELECT CAST(json_group_array(json_array(w.key, s.id)) AS BLOB)
FROM json_each(?) AS w CROSS JOIN states AS s INDEXED BY states_dedupe
    ON s.tenant = w.value ->> 0 AND s.dedupe_key = w.value ->> 1
    AND s.dedupe_key IS NOT NULL AND s.status IN ('blocked', 'queued', 'running')

-- name: jobs_by_reuse_key
-- Which jobs answer those that ask for the same: pairs of the asked-for position and the job. Keys are in hex.
SELECT CAST(json_group_array(json_array(w.key, k.job)) AS BLOB)
FROM json_each(?) AS w CROSS JOIN reuse_keys AS k
    ON k.tenant = w.value ->> 0 AND k.type = w.value ->> 1 AND k.key = unhex(w.value ->> 2)
CROSS JOIN states AS s ON s.number = k.job
WHERE s.status NOT IN ('dead', 'canceled')

-- name: insert_reuse_keys
INSERT OR REPLACE INTO reuse_keys (tenant, type, key, job) VALUES (?, ?, ?, ?)

-- name: remove_reuse_keys
-- These jobs (a JSON array of numbers) answer nobody any more.
DELETE FROM reuse_keys WHERE (tenant, type, key, job) IN (
    SELECT s.tenant, s.type, j.reuse_key, j.number
    FROM json_each(?) AS w CROSS JOIN jobs AS j ON j.number = w.value CROSS JOIN states AS s ON s.number = j.number
    WHERE j.reuse_key IS NOT NULL
)

-- name: clear_reuse_keys
DELETE FROM reuse_keys WHERE (tenant, type, key) IN (SELECT tenant, type, key FROM reuse_keys WHERE tenant = ?1 LIMIT ?2)
