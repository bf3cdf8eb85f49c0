-- Counts are exact: they change in the transaction that moves the jobs. The row of VALUES is repeated.
INSERT INTO counts (tenant, type, status, jobs) VALUES (?, ?, ?, ?)
ON CONFLICT (tenant, type, status) DO UPDATE SET jobs = jobs + excluded.jobs
