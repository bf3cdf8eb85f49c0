"""honker: its Python API on its native writer connection, with its own batches."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from benchmarks.queue.adapter import (
    BATCH_JOBS,
    CALLERS,
    ConnectionReadback,
    DriveOptions,
    Level,
    Payload,
    ThreadSystem,
    drive_options,
)
from benchmarks.queue.honker_wheel import honker_folder

WORKER: Final = "worker-1"

sys.path.insert(0, str(honker_folder()))
HONKER: Any = import_module("honker")


class HonkerQueue:
    """One database object. A second one in the same process would soon fail with "database is locked"."""

    def __init__(self, folder: Path, level: Level, options: DriveOptions) -> None:
        self._database = HONKER.open(str(folder / "honker.db"))
        self._queue = self._database.queue("noop")
        if level == "FULL":
            self._set_full()

    def _set_full(self) -> None:
        # The native part sets NORMAL, and offers its writer only in a transaction, where SQLite cannot change
        # `synchronous`. So end that transaction, and begin a new one after the change.
        with self._database.transaction() as writer:
            writer.execute("COMMIT")
            writer.execute("PRAGMA synchronous = FULL")
            writer.execute("BEGIN IMMEDIATE")

    def connect(self) -> HonkerQueue:
        return self

    def put(self, job: Payload) -> None:
        self._queue.enqueue(job)

    def put_many(self, jobs: list[Payload]) -> None:
        with self._database.transaction() as writer:
            for job in jobs:
                self._queue.enqueue(job, tx=writer)

    def take(self, limit: int) -> int:
        jobs = self._queue.claim_batch(WORKER, limit)
        acked: int = self._queue.ack_batch([job.id for job in jobs], WORKER)
        return acked

    def readback(self) -> ConnectionReadback:
        with self._database.transaction() as writer:
            (row,) = writer.query(
                "SELECT p.synchronous, j.journal_mode, sqlite_version() AS version"
                " FROM pragma_synchronous AS p, pragma_journal_mode AS j"
            )
        return ConnectionReadback(int(row["synchronous"]), str(row["journal_mode"]), str(row["version"]))

    def close(self) -> None:
        self._database.close()


SYSTEM = ThreadSystem(
    name="honker",
    levels=("default", "FULL"),
    options={"single": drive_options([CALLERS, 1]), "pipeline": drive_options([1, 4], batch_jobs=BATCH_JOBS)},
    open=HonkerQueue,
)
