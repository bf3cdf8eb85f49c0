"""The PostgreSQL engine: SQL functions over arrays, calls in batches, and tenants isolated by row-level security."""

from ingot.engines.postgres.migrate import migrate
from ingot.engines.postgres.roles import grant_app_role, make_worker_role, revoke_app_role
from ingot.engines.postgres.store import PostgresStore

__all__ = ["PostgresStore", "grant_app_role", "make_worker_role", "migrate", "revoke_app_role"]
