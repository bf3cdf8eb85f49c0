-- Whether the servers of this database use the secret key with this fingerprint. The first call records it, and `replaces`
-- changes it.
CREATE OR REPLACE FUNCTION ingot.check_secret_key(new_fingerprint bytea, replaces boolean) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '3s'
AS $$
DECLARE
    current bytea;
BEGIN
    INSERT INTO ingot.secret_key (fingerprint) VALUES (new_fingerprint) ON CONFLICT (only_row) DO NOTHING;
    SELECT k.fingerprint INTO current FROM ingot.secret_key AS k FOR UPDATE;
    IF current <> new_fingerprint AND replaces THEN
        UPDATE ingot.secret_key SET fingerprint = new_fingerprint;
        current := new_fingerprint;
    END IF;
    RETURN current = new_fingerprint;
END
$$;
