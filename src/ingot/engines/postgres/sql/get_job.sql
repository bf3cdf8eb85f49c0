-- One job of the tenant that is set.
SELECT * FROM ingot.job_rows WHERE id = $1
