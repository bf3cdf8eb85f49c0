"""Counts the virtual machine steps of SQLite by statement, which do not depend on the speed of the machine."""

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
    """The steps of every run of each named statement, and the total number of statements and steps."""

    def __init__(self) -> None:
        self._names = {_one_row(getattr(SQL, name)): name for name in SQL.names()}
        self.steps: defaultdict[str, list[int]] = defaultdict(list)
        self.automatic_indexes: set[str] = set()
        self.statements = 0  # Including unnamed ones, such as COMMIT.
        self.total_steps = 0
        self._before: dict[tuple[int, int], dict[str, int]] = {}

    def attach(self, connection: apsw.Connection) -> None:
        """Measure a connection."""
        connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, self._record)

    def _record(self, profile: dict[str, Any]) -> None:
        status: dict[str, int] = profile["stmt_status"]
        # The counters of a prepared statement accumulate over its runs.
        key = id(profile["connection"]), profile["id"]
        before = self._before.get(key)
        if before is None or before[RUNS] >= status[RUNS]:
            before = {STEPS: 0}
        self._before[key] = status
        steps = status[STEPS] - before[STEPS]
        self.statements += 1
        self.total_steps += steps
        name = self._names.get(_one_row(profile["sql"]))
        if name is None:
            return
        self.steps[name].append(steps)
        if status[AUTOMATIC_INDEX]:
            self.automatic_indexes.add(name)


@contextmanager
def metered() -> Iterator[Meter]:
    """Measure every connection opened in the block."""
    meter = Meter()
    apsw.connection_hooks.append(meter.attach)
    try:
        yield meter
    finally:
        apsw.connection_hooks.remove(meter.attach)


def _one_row(statement: str) -> str:
    return _MORE_ROWS.sub(r"\1", statement)
