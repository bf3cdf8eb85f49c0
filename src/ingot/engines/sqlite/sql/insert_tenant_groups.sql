-- A JSON object of their names and the roles of their people.
INSERT INTO tenant_groups (tenant, name, role) SELECT ?1, g.key, g.value FROM json_each(?2) AS g
