"""Reads the settings of a sqlite3 connection."""

from __future__ import annotations

import sqlite3

from benchmarks.queue.adapter import ConnectionReadback


def read_back(connection: sqlite3.Connection) -> ConnectionReadback:
    (synchronous,) = connection.execute("PRAGMA synchronous").fetchone()
    (journal_mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    (version,) = connection.execute("SELECT sqlite_version()").fetchone()
    return ConnectionReadback(int(synchronous), str(journal_mode), str(version))
