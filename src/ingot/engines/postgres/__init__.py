"""The engine on PostgreSQL: functions over arrays, calls in batches, tenants isolated by the database."""

from ingot.engines.postgres.migrate import migrate
from ingot.engines.postgres.roles import make_worker_role
from ingot.engines.postgres.store import PostgresStore

__all__ = ["PostgresStore", "make_worker_role", "migrate"]
