"""The engine on PostgreSQL: functions over arrays, calls in batches, tenants isolated by the database."""

from ingot.engines.postgres.migrate import migrate
from ingot.engines.postgres.roles import let_in, let_out, make_worker_role
from ingot.engines.postgres.store import PostgresStore

__all__ = ["PostgresStore", "let_in", "let_out", "make_worker_role", "migrate"]
