"""The version, the schema and the size of the database file."""

from __future__ import annotations

from pathlib import Path

import apsw

from ingot.engines.sqlite.readers import Reader
from ingot.engines.sqlite.sql import SQL
from ingot.jobs.metrics import StoreDescription
from ingot.jobs.ports import DescribeStore


def describe_store(reader: Reader, _: DescribeStore) -> StoreDescription:
    """Read the version, the schema and the size of the database."""
    return StoreDescription(
        database_version=f"SQLite {apsw.sqlite_lib_version()}",
        schema_version=reader.execute(SQL.schema_version).get,
        database_bytes=_size_of(Path(reader.connection.filename)),
        wal_bytes=_size_of(Path(reader.connection.filename_wal)),
    )


def _size_of(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0
