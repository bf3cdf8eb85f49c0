-- Tenants whose oldest batch is from then or before, and is not their newest.
SELECT json_group_array(number) FROM tenants
WHERE (SELECT at FROM events WHERE tenant = tenants.number ORDER BY batch LIMIT 1) <= ?
    AND (SELECT min(batch) FROM events WHERE tenant = tenants.number)
        < (SELECT max(batch) FROM events WHERE tenant = tenants.number)
