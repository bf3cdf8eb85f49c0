"""litequeue: `put` and `done` in one transaction per batch, and `pop` in one transaction per job."""

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
    drive_options,
)
from benchmarks.queue.sqlite_readback import read_back

VERSION: Final = "0.9"
LITEQUEUE: Any = component("litequeue")
if LITEQUEUE.__version__ != VERSION:
    raise MissingDependency(
        f"litequeue {LITEQUEUE.__version__} is installed, but this benchmark needs {VERSION}, which has another API. "
        "The lock file selects it for Python 3.11: create the environment with that version."
    )
OWN: Final = "one connection per caller"
SHARED: Final = "one shared connection"


class LiteQueueConnection:
    """A LiteQueue object, which is one connection. It sets NORMAL itself, so FULL is set after that."""

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
    """The connections of all callers: one for each, or a shared one, which is safe only for `put`."""

    def __init__(self, folder: Path, level: Level, options: DriveOptions) -> None:
        self._path, self._level = folder / "litequeue.db", level
        self._connections = [LiteQueueConnection(self._path, level)]
        self._shared = options.variant == SHARED

    def connect(self) -> LiteQueueConnection:
        if not self._shared:
            self._connections.append(LiteQueueConnection(self._path, self._level))
        return self._connections[-1]

    def close(self) -> None:
        for connection in self._connections:
            connection.close()


SYSTEM = ThreadSystem(
    name="litequeue",
    levels=("default", "FULL"),
    options={
        "single": (*drive_options([CALLERS], [SHARED, OWN]), *drive_options([1])),
        "pipeline": drive_options([1], batch_jobs=BATCH_JOBS),
    },
    open=LiteQueueConnections,
)
