-- Numbers of a tenant's jobs that have a tag, newest first, below one number and not below another.
SELECT CAST(json_group_array(job) AS BLOB) FROM (
    SELECT job FROM tags INDEXED BY tags_by_tenant
    WHERE tenant = ? AND tag = ? AND job < ? AND job >= ?
    ORDER BY job DESC
    LIMIT ?
)
