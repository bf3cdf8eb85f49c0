"""Counts the steps of SQLite's machine by statement, which no slow minute of the computer changes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import apsw

from ingot.engines.sqlite.sql import SQL

STEPS = "SQLITE_STMTSTATUS_VM_STEP"
RUNS = "SQLITE_STMTSTATUS_RUN"
AUTOMATIC_INDEX = "SQLITE_STMTSTATUS_AUTOINDEX"

_MORE_ROWS = re.compile(r"(\([?, ]+\))(?:, \1)+")


class Meter:
    """The steps of every run of every statement that has a name, and the number of all statements and steps."""

    def __init__(self) -> None:
        self._names = {_one_row(getattr(SQL, name)): name for name in SQL.names()}
        self.steps: defaultdict[str, list[int]] = defaultdict(list)
        self.automatic_indexes: set[str] = set()
        self.statements = 0  # With those that have no name, such as COMMIT.
        self.total_steps = 0
        self._before: dict[tuple[int, int], dict[str, int]] = {}

    def watch(self, connection: apsw.Connection) -> None:
        """Meter a connection."""
        connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, self._note)

    def _note(self, told: dict[str, Any]) -> None:
        now: dict[str, int] = told["stmt_status"]
        # A prepared statement that is run again goes on counting.
        key = id(told["connection"]), told["id"]
        before = self._before.get(key)
        if before is None or before[RUNS] >= now[RUNS]:
            before = {STEPS: 0}
        self._before[key] = now
        steps = now[STEPS] - before[STEPS]
        self.statements += 1
        self.total_steps += steps
        name = self._names.get(_one_row(told["sql"]))
        if name is None:
            return
        self.steps[name].append(steps)
        if now[AUTOMATIC_INDEX]:
            self.automatic_indexes.add(name)


@contextmanager
def metered() -> Iterator[Meter]:
    """Meter every connection that is opened inside the block."""
    meter = Meter()
    apsw.connection_hooks.append(meter.watch)
    try:
        yield meter
    finally:
        apsw.connection_hooks.remove(meter.watch)


def _one_row(statement: str) -> str:
    return _MORE_ROWS.sub(r"\1", statement)
