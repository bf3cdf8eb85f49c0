-- Batches are counted in the transaction that moves their jobs. The row of VALUES is repeated.
INSERT INTO batches (tenant, batch, total, succeeded, dead, canceled) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, batch) DO UPDATE SET
    total = total + excluded.total, succeeded = succeeded + excluded.succeeded, dead = dead + excluded.dead,
    canceled = canceled + excluded.canceled
