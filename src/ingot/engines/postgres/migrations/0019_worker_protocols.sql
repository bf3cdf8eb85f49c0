-- The version of the worker protocol that a worker uses. Workers that connect to the database have none.
ALTER TABLE ingot.workers ADD COLUMN protocol integer;
