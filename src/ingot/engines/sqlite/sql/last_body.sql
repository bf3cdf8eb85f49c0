SELECT coalesce(max(body), 0) FROM jobs
