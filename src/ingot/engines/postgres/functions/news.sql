-- What an event says about a job, as the log keeps it: a JSON array in the order of `NewsRow`. Inlined where it is used.
CREATE OR REPLACE FUNCTION ingot.news(
    name text, id uuid, type text, status text, attempts integer, failures integer, crashes integer, fence bigint,
    worker_id text, run_at bigint, will_retry boolean, error text, cancel_requested boolean,
    percent double precision, stage text
) RETURNS text
LANGUAGE sql STABLE
AS $$
    SELECT '["' || name || '","' || id || '","' || type || '","' || status || '",' || attempts || ',' || failures
        || ',' || crashes || ',' || fence || ',' || coalesce(to_json(worker_id)::text, 'null')
        || ',' || coalesce(run_at::text, 'null') || ',' || coalesce(will_retry::text, 'null')
        || ',' || coalesce(to_json(error)::text, 'null') || ',' || cancel_requested
        || ',' || coalesce(to_json(percent)::text, 'null') || ',' || coalesce(to_json(stage)::text, 'null') || ']'
$$;
