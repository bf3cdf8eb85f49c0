-- The types of the tenant that is set which are paused.
SELECT type, since, by FROM ingot.pauses WHERE tenant = $1 ORDER BY type
