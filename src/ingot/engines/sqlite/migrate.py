"""Migrations: numbered, forward only, each in its own transaction."""

from __future__ import annotations

import apsw

from ingot.engines.migrations import Migration, read_migrations
from ingot.kernel.clock import Clock
from ingot.kernel.errors import StoreTooNew

PACKAGE = "ingot.engines.sqlite.migrations"
_MIGRATIONS_TABLE = (
    "CREATE TABLE IF NOT EXISTS migrations (number INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at INTEGER)"
)


def migrations() -> list[Migration]:
    """Return all migrations of this program, in order."""
    return read_migrations(PACKAGE)


def migrate(connection: apsw.Connection, clock: Clock) -> list[Migration]:
    """Apply the missing migrations and return them. Raises `StoreTooNew` for a file from a later version."""
    available = migrations()
    applied: list[Migration] = []
    with connection:
        connection.execute(_MIGRATIONS_TABLE)
        newest = connection.execute("SELECT coalesce(max(number), 0) FROM migrations").get
    if newest > available[-1].number:
        raise StoreTooNew(f"The file is at schema {newest}; this program supports up to {available[-1].number}.")
    for migration in available:
        if migration.number > newest:
            with connection:
                connection.execute(migration.text)
                row = (migration.number, migration.name, clock.micros())
                connection.execute("INSERT INTO migrations VALUES (?, ?, ?)", row)
            applied.append(migration)
    return applied
