SELECT max(last_number, (SELECT coalesce(max(number), 0) FROM jobs)) FROM store
