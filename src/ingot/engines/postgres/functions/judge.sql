-- The status of a job after an attempt: the same rules as `judge` in jobs/lifecycle.py, and a test compares both.
-- `random_fraction`, from 0 up to 1, varies the pause before a retry. PostgreSQL inlines these functions.
CREATE OR REPLACE FUNCTION ingot.backoff(
    first_seconds double precision, factor double precision, max_seconds double precision, failures integer,
    random_fraction double precision
) RETURNS bigint
LANGUAGE sql IMMUTABLE
AS $$
    SELECT trunc((1 - 0.25 * random_fraction) * 1000000 * least(max_seconds, CASE
        WHEN first_seconds <= 0 THEN 0
        WHEN ln(first_seconds) + (failures - 1) * ln(factor) >= 700 THEN max_seconds
        WHEN (failures - 1) * ln(factor) < 700 THEN first_seconds * power(factor, failures - 1)
        ELSE exp(ln(first_seconds) + (failures - 1) * ln(factor))
    END))::bigint
$$;

CREATE OR REPLACE FUNCTION ingot.judge(
    outcome text, retry boolean, delay bigint, reported_error text,
    failures integer, crashes integer, max_attempts integer, cancel_requested boolean,
    crash_cap integer, first_seconds double precision, factor double precision, max_seconds double precision,
    now bigint, random_fraction double precision
) RETURNS TABLE (status text, failures_after integer, crashes_after integer, run_at_after bigint, error text)
LANGUAGE sql STABLE
AS $$
    SELECT
        CASE
            WHEN outcome = 'succeeded' THEN 'succeeded'
            WHEN cancel_requested THEN 'canceled'
            WHEN outcome IN ('failed', 'timed_out') AND (failures + 1 >= max_attempts OR NOT retry) THEN 'dead'
            WHEN outcome = 'lost' AND crashes + 1 >= crash_cap THEN 'dead'
            ELSE 'queued'
        END,
        failures + (outcome IN ('failed', 'timed_out') AND NOT cancel_requested)::integer,
        crashes + (outcome = 'lost' AND NOT cancel_requested)::integer,
        CASE
            WHEN outcome IN ('failed', 'timed_out')
                THEN now + ingot.backoff(first_seconds, factor, max_seconds, failures + 1, random_fraction)
            WHEN outcome = 'lost' THEN now + trunc(5.0::double precision * random_fraction * 1000000)::bigint
            WHEN outcome = 'snoozed' THEN now + delay
            ELSE now
        END,
        CASE
            WHEN outcome IN ('failed', 'timed_out') THEN reported_error
            WHEN outcome = 'lost' THEN
                format('the lease expired without a heartbeat from the worker (crash %s of %s)', crashes + 1, crash_cap)
        END
$$;
