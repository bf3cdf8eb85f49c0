SELECT s.number FROM states AS s JOIN tenants AS t ON t.number = s.tenant WHERE s.id = ? AND t.id = ?
