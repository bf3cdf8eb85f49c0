-- How many jobs of a tenant have a tag, counted so far and no further.
SELECT count(*) FROM (SELECT 1 FROM tags INDEXED BY tags_by_tenant WHERE tenant = ? AND tag = ? LIMIT ?)
