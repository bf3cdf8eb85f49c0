-- A batch of the tenant that is set, in numbers.
SELECT total, succeeded, dead, canceled FROM ingot.sums_of_batch($1, $2)
