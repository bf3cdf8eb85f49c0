-- Whether the servers of this database have this key; the first that comes says which it is, and so does who replaces it.
CREATE OR REPLACE FUNCTION ingot.keep_secret_key(of_key bytea, replaces boolean) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '3s'
AS $$
DECLARE
    known bytea;
BEGIN
    INSERT INTO ingot.secret_key (fingerprint) VALUES (of_key) ON CONFLICT (only_row) DO NOTHING;
    SELECT k.fingerprint INTO known FROM ingot.secret_key AS k FOR UPDATE;
    IF known <> of_key AND replaces THEN
        UPDATE ingot.secret_key SET fingerprint = of_key;
        known := of_key;
    END IF;
    RETURN known = of_key;
END
$$;
