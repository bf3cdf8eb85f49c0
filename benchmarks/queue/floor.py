"""The floor: one table, one writer thread, and one commit for all waiting changes.

A queue in Python that waits for fsync can hardly be faster. The time that a system needs beyond it is the cost of its
guarantees.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import chain, count
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Final

import apsw

from benchmarks.queue.adapter import (
    BATCH_JOBS,
    CALLERS,
    ConnectionReadback,
    DriveOptions,
    Level,
    Payload,
    TaskSystem,
    drive_options,
)

Row = tuple[int, str, int]
EXECUTE_MANY: Final = "executemany"
ONE_INSERT: Final = "one INSERT of many rows"
SCHEMA: Final = """
PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
CREATE TABLE jobs(id INTEGER PRIMARY KEY, payload TEXT, created_at INTEGER);
CREATE TABLE done(id INTEGER PRIMARY KEY, payload TEXT, created_at INTEGER);
"""
INSERT: Final = "INSERT INTO jobs(id, payload, created_at) VALUES (?, ?, ?)"
CLAIM: Final = (
    "DELETE FROM jobs WHERE id IN (SELECT id FROM jobs ORDER BY id LIMIT ?) RETURNING id, payload, created_at"
)


class FloorQueue:
    """Passes rows to the writer thread, which resolves the futures of a batch with one call into the event loop."""

    def __init__(self, path: Path, variant: str) -> None:
        self._one_insert, self._loop, self._ids = variant == ONE_INSERT, asyncio.get_running_loop(), count()
        self._waiting: SimpleQueue[tuple[str, Any, asyncio.Future[Any]]] = SimpleQueue()
        self._db = apsw.Connection(str(path))
        self._db.execute(SCHEMA).fetchall()
        self._writer = Thread(target=self._write)
        self._writer.start()

    def _write(self) -> None:
        stopped = False
        while not stopped:
            commands = [self._waiting.get()]
            with suppress(Empty):
                while True:
                    commands.append(self._waiting.get_nowait())
            self._db.execute("BEGIN IMMEDIATE")
            if rows := [row for verb, value, _ in commands if verb == "put" for row in value]:
                self._insert(rows)
            results = [self._apply(verb, value) for verb, value, _ in commands]
            self._db.execute("COMMIT")
            self._loop.call_soon_threadsafe(_resolve, [future for *_, future in commands], results)
            stopped = any(verb == "stop" for verb, *_ in commands)

    def _insert(self, rows: list[Row]) -> None:
        if self._one_insert:
            self._db.execute(INSERT + ", (?, ?, ?)" * (len(rows) - 1), tuple(chain.from_iterable(rows)))
        else:
            self._db.executemany(INSERT, rows)

    def _apply(self, verb: str, value: Any) -> list[Any] | None:
        if verb == "claim":
            return self._db.execute(CLAIM, (value,)).fetchall()
        if verb == "settle":
            placeholders = ", ".join(["(?, ?, ?)"] * len(value))
            self._db.execute(f"INSERT INTO done VALUES {placeholders}", tuple(chain.from_iterable(value)))
        return None

    def _send(self, verb: str, value: Any) -> asyncio.Future[Any]:
        future = self._loop.create_future()
        self._waiting.put((verb, value, future))
        return future

    async def put(self, job: Payload) -> None:
        await self._send("put", [(next(self._ids), json.dumps(job), time.time_ns())])

    async def put_many(self, jobs: list[Payload]) -> None:
        await self._send("put", [(next(self._ids), json.dumps(job), time.time_ns()) for job in jobs])

    async def take(self, limit: int) -> int:
        if rows := await self._send("claim", limit):
            await self._send("settle", rows)
        return len(rows)

    async def readback(self) -> ConnectionReadback:
        mode = str(self._db.pragma("journal_mode"))
        return ConnectionReadback(int(self._db.pragma("synchronous")), mode, apsw.sqlite_lib_version())

    async def close(self) -> None:
        await self._send("stop", None)
        self._writer.join()
        self._db.close()


def _resolve(futures: list[asyncio.Future[Any]], results: list[Any]) -> None:
    for future, result in zip(futures, results, strict=True):
        future.set_result(result)


@asynccontextmanager
async def open_floor(folder: Path, level: Level, options: DriveOptions) -> AsyncIterator[FloorQueue]:
    floor = FloorQueue(folder / "floor.db", options.variant)
    try:
        yield floor
    finally:
        await floor.close()


SYSTEM = TaskSystem(
    name="floor",
    levels=("FULL",),
    options={
        "single": drive_options([CALLERS], [EXECUTE_MANY, ONE_INSERT]),
        "pipeline": drive_options([8, 2, 1], [ONE_INSERT], batch_jobs=BATCH_JOBS),
    },
    open=open_floor,
)
