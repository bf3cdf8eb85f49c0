"""Read a sqlite3 connection's settings back."""

from __future__ import annotations

import sqlite3

from benchmarks.queue.adapter import Readback


def read_back(connection: sqlite3.Connection) -> Readback:
    (synchronous,) = connection.execute("PRAGMA synchronous").fetchone()
    (journal_mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    (version,) = connection.execute("SELECT sqlite_version()").fetchone()
    return Readback(int(synchronous), str(journal_mode), str(version))
