"""Migrations: numbered, forward only, each in a transaction of its own."""

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
    """All steps this program knows, in order."""
    return read_migrations(PACKAGE)


def migrate(connection: apsw.Connection, clock: Clock) -> list[Migration]:
    """Apply what is missing and return it. Raises `StoreTooNew` for a file from a later version."""
    known = migrations()
    applied: list[Migration] = []
    with connection:
        connection.execute(_MIGRATIONS_TABLE)
        newest = connection.execute("SELECT coalesce(max(number), 0) FROM migrations").get
    if newest > known[-1].number:
        raise StoreTooNew(f"The file is at schema {newest}; this program supports up to {known[-1].number}.")
    for step in known:
        if step.number > newest:
            with connection:
                connection.execute(step.text)
                row = (step.number, step.name, clock.micros())
                connection.execute("INSERT INTO migrations VALUES (?, ?, ?)", row)
            applied.append(step)
    return applied
