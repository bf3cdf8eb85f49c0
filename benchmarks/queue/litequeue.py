"""litequeue: put and done in transactions of a batch where that is wanted; pop is one transaction per job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from benchmarks.queue.adapter import (
    BATCH_JOBS,
    CALLERS,
    ConnectionReadback,
    DriveOptions,
    Level,
    MissingDependency,
    Payload,
    ThreadSystem,
    component,
    ways,
)
from benchmarks.queue.sqlite_readback import read_back

VERSION: Final = "0.9"
LITEQUEUE: Any = component("litequeue")
if LITEQUEUE.__version__ != VERSION:
    raise MissingDependency(
        f"litequeue {LITEQUEUE.__version__} is installed, whose calls differ from those of {VERSION} measured here. "
        "The lock chooses by Python version: make the environment with Python 3.11."
    )
OWN: Final = "a connection each"
SHARED: Final = "one shared connection"


class LiteQueueConnection:
    """A LiteQueue object, which is one connection. FULL is set on it after it has set NORMAL itself."""

    def __init__(self, path: Path, level: Level) -> None:
        self._queue = LITEQUEUE.LiteQueue(path)
        if level == "FULL":
            self._queue.conn.execute("PRAGMA synchronous = FULL")

    def put(self, job: Payload) -> None:
        self._queue.put(json.dumps(job))

    def put_many(self, jobs: list[Payload]) -> None:
        with self._queue.transaction("IMMEDIATE"):
            for job in jobs:
                self._queue.put(json.dumps(job))

    def take(self, limit: int) -> int:
        messages = []
        for _ in range(limit):
            message = self._queue.pop()
            if message is None:
                break
            messages.append(message)
        if messages:
            with self._queue.transaction("IMMEDIATE"):
                for message in messages:
                    self._queue.done(message.message_id)
        return len(messages)

    def readback(self) -> ConnectionReadback:
        self._queue.conn.row_factory = None
        return read_back(self._queue.conn)

    def close(self) -> None:
        self._queue.close()


class LiteQueueConnections:
    """The hands of all callers: a connection each, or one that they share (safe for `put` alone)."""

    def __init__(self, folder: Path, level: Level, way: DriveOptions) -> None:
        self._path, self._level = folder / "litequeue.db", level
        self._hands = [LiteQueueConnection(self._path, level)]
        self._shared = way.option == SHARED

    def hand(self) -> LiteQueueConnection:
        if not self._shared:
            self._hands.append(LiteQueueConnection(self._path, self._level))
        return self._hands[-1]

    def close(self) -> None:
        for hand in self._hands:
            hand.close()


SYSTEM = ThreadSystem(
    name="litequeue",
    levels=("default", "FULL"),
    ways={"single": (*ways([CALLERS], [SHARED, OWN]), *ways([1])), "pipeline": ways([1], batch_jobs=BATCH_JOBS)},
    open=LiteQueueConnections,
)
