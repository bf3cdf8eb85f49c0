-- The version of the worker protocol that a worker uses.
ALTER TABLE workers ADD COLUMN protocol INTEGER;
