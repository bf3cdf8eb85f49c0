-- A JSON array of their names.
INSERT INTO user_groups (user, name) SELECT DISTINCT ?1, g.value FROM json_each(?2) AS g
