"""huey: SqliteHuey, with its task decorator, and its `dequeue` and `execute` in a loop that does not sleep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.queue.adapter import (
    CALLERS,
    ConnectionReadback,
    DriveOptions,
    Level,
    Payload,
    ThreadSystem,
    component,
    drive_options,
)
from benchmarks.queue.sqlite_readback import read_back

HUEY: Any = component("huey")


class HueyQueue:
    """One SqliteHuey, whose threads share one connection."""

    def __init__(self, folder: Path, level: Level, options: DriveOptions) -> None:
        settings: dict[str, Any] = {"fsync": True} if level == "FULL" else {}
        self._huey = HUEY.SqliteHuey(filename=str(folder / "huey.db"), **settings)
        self._noop = self._huey.task(name="noop")(_noop)

    def connect(self) -> HueyQueue:
        return self

    def put(self, job: Payload) -> None:
        self._noop(job)

    def put_many(self, jobs: list[Payload]) -> None:
        for job in jobs:
            self._noop(job)

    def take(self, limit: int) -> int:
        for taken in range(limit):
            task = self._huey.dequeue()
            if task is None:
                return taken
            self._huey.execute(task)
        return limit

    def readback(self) -> ConnectionReadback:
        return read_back(self._huey.storage.conn)

    def close(self) -> None:
        self._huey.storage.close()


def _noop(job: Payload) -> None:
    """A task that does nothing and stores no result."""


SYSTEM = ThreadSystem(
    name="huey",
    levels=("default", "FULL"),
    options={"single": drive_options([CALLERS, 1]), "pipeline": drive_options([1, 4])},
    open=HueyQueue,
)
