"""The engine on SQLite: one file, one writer thread, group commit, reader connections."""

from ingot.engines.sqlite.store import SQLiteStore

__all__ = ["SQLiteStore"]
