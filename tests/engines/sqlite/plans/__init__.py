"""What the plan tests share: a meter for the work of SQLite, and everything that can be asked of a store."""
