-- The position of a transaction in the event log. PostgreSQL inlines this function.
CREATE OR REPLACE FUNCTION ingot.event_position(transaction xid8) RETURNS bigint
LANGUAGE sql STABLE
AS $$ SELECT transaction::text::bigint + ingot.position_offset() $$;

-- An event about one job, or the same event about several, as the log stores it: a JSON array in the order of
-- `EventEntryRow` in job_rows.py, without trailing nulls. `ids` is JSON too. PostgreSQL inlines this function.
CREATE OR REPLACE FUNCTION ingot.job_event_entry(
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

CREATE OR REPLACE FUNCTION ingot.quoted_id(id uuid) RETURNS text
LANGUAGE sql STABLE
AS $$ SELECT '"' || id || '"' $$;

-- Join two JSON arrays of entries, for a transaction that writes events of a tenant more than once.
CREATE OR REPLACE FUNCTION ingot.join_entries(entries text, more_entries text) RETURNS text
LANGUAGE sql IMMUTABLE
AS $$ SELECT left(entries, -1) || ',' || substr(more_entries, 2) $$;
