SELECT json_group_array(json_array(batch, at)) FROM (
    SELECT batch, at FROM events WHERE tenant = ? ORDER BY batch LIMIT ?
)
