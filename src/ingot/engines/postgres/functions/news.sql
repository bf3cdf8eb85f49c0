-- The position of a transaction in the event log. Inlined where it is used.
CREATE OR REPLACE FUNCTION ingot.position(transaction xid8) RETURNS bigint
LANGUAGE sql STABLE
AS $$ SELECT transaction::text::bigint + ingot.shift() $$;

-- What an event says about a job, or about several in the same words, as the log keeps it: a JSON array in the order of
-- `NewsRow`, which ends where nothing more is to be said. `ids` is JSON too. Inlined where it is used.
CREATE OR REPLACE FUNCTION ingot.news(
    name text, ids text, type text, status text, attempts integer, failures integer, crashes integer, fence bigint,
    worker_id text, run_at bigint, will_retry boolean, error text, cancel_requested boolean,
    percent double precision, stage text
) RETURNS text
LANGUAGE sql STABLE
AS $$
    SELECT '["' || name || '",' || ids || ',"' || type || '","' || status || '",' || attempts || ',' || failures
        || ',' || crashes || ',' || fence || CASE
            WHEN run_at IS NOT NULL OR will_retry IS NOT NULL OR error IS NOT NULL OR cancel_requested OR percent IS NOT NULL
                THEN ',' || coalesce(to_json(worker_id)::text, 'null')
                    || ',' || coalesce(run_at::text, 'null') || ',' || coalesce(will_retry::text, 'null')
                    || ',' || coalesce(to_json(error)::text, 'null') || ',' || cancel_requested
                    || ',' || coalesce(to_json(percent)::text, 'null') || ',' || coalesce(to_json(stage)::text, 'null') || ']'
            WHEN worker_id IS NOT NULL THEN ',' || to_json(worker_id) || ']'
            ELSE ']'
        END
$$;

CREATE OR REPLACE FUNCTION ingot.ids(id uuid) RETURNS text
LANGUAGE sql STABLE
AS $$ SELECT '"' || id || '"' $$;

-- The entries of a transaction in which a worker calls more than one function, as one array.
CREATE OR REPLACE FUNCTION ingot.then(entries text, more text) RETURNS text
LANGUAGE sql IMMUTABLE
AS $$ SELECT left(entries, -1) || ',' || substr(more, 2) $$;
