-- The server that receives the bytes of an upload in one request; NULL if a client can continue the upload.
ALTER TABLE uploads ADD COLUMN server TEXT;
CREATE INDEX uploads_of_servers ON uploads (server) WHERE server IS NOT NULL AND state IN ('open', 'verifying');
