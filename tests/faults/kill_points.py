"""Named places at which a process kills itself, found from outside: the code under test knows nothing of them."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import apsw

from tests.faults.history import FileRecorder
from tests.faults.watched_files import WatchedFile, Watcher

WRITER_THREAD = "ingot-writer"

# A statement of the writer, found by a part of its text; the kill comes before it runs.
STATEMENTS = {
    "before a group begins": "BEGIN IMMEDIATE",
    "before an outcome is written": "INSERT INTO outcomes",
    "before an attempt is written": "INSERT INTO attempts",
    "before the events are written": "INSERT INTO events",
    "before the counts are written": "INSERT INTO counts",
    "before the clock is kept": "UPDATE store SET clock",
    "before the commit": "COMMIT",
}
# The same while a store is opened.
OPENING_STATEMENTS = {
    "before the epoch begins": "UPDATE store SET epoch",
    "after the epoch began, before its commit": "SELECT clock FROM store",
}
# The same while a new store is made.
MAKING_STATEMENTS = {
    "before the ledger of migrations": "CREATE TABLE IF NOT EXISTS migrations",
    "in the middle of a migration": "CREATE TABLE attempts",
    "before a migration is noted": "INSERT INTO migrations",
}
FILES = {
    "in the middle of the log": "log_write",
    "after half a page of the log": "log_half",
    "before the log is synced": "log_sync",
    "after the log is synced": "log_synced",
    "when the log begins again": "log_restart",
    "before a checkpoint writes": "database_write",
    "after half a page of a checkpoint": "database_half",
    "before a checkpoint is synced": "database_sync",
    "after a checkpoint is synced": "database_synced",
}
CLOSING_FILES = {
    "before the log is deleted": "log_delete",
    "after the log is deleted": "log_deleted",
}
MAKING_FILES = {
    "when the file is made": "database_open",
    "before the first page is synced": "database_sync",
    "when the log is made": "log_open",
}
ANSWERS = ("after the commit, before any answer", "when an answer was heard", "when an answer was recorded")
ANYWHERE = "between two statements of a group"

WORKING = (*STATEMENTS, *FILES, *ANSWERS, ANYWHERE)
OPENING = tuple(OPENING_STATEMENTS)
CLOSING = tuple(CLOSING_FILES)
MAKING = (*MAKING_STATEMENTS, *MAKING_FILES)
RARE = frozenset({"when the log begins again", "before a checkpoint is synced", "after a checkpoint is synced"})


class Trap:
    """Kills this process the n-th time it is stepped on."""

    def __init__(self, countdown: int) -> None:
        self._countdown = countdown
        self._lock = threading.Lock()

    def step(self) -> None:
        """One more time. Nothing runs after the last."""
        with self._lock:
            self._countdown -= 1
            if self._countdown == 0:
                os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(60)


def arm(point: str, countdown: int) -> Watcher | None:
    """Set the trap, in a process that has an event loop and no store yet. Answers the files that the store must use."""
    trap = Trap(countdown)
    statements = STATEMENTS | OPENING_STATEMENTS | MAKING_STATEMENTS
    files = FILES | CLOSING_FILES | MAKING_FILES
    if point in statements:
        _trace(lambda sql: trap.step() if statements[point] in sql else None)
    elif point == ANYWHERE:
        _trace(lambda sql: trap.step() if threading.current_thread().name == WRITER_THREAD else None)
    elif point in files:
        return _Deadly(trap, files[point])
    elif point == ANSWERS[0]:
        _trap_delivery(trap)
    else:
        assert point in ANSWERS, f"there is no point {point}"
        _trap_recorder(trap, before=point == ANSWERS[1])
    return None


def _trace(see: Callable[[str], None]) -> None:
    def trace(cursor: object, sql: str, bindings: object) -> bool:
        see(sql)
        return True

    def hook(connection: apsw.Connection) -> None:
        connection.exec_trace = trace

    apsw.connection_hooks.append(hook)


def _trap_delivery(trap: Trap) -> None:
    loop = asyncio.get_running_loop()
    deliver = loop.call_soon_threadsafe

    def deadly(*args: Any, **options: Any) -> asyncio.Handle:
        if threading.current_thread().name == WRITER_THREAD:
            trap.step()
        return deliver(*args, **options)

    setattr(loop, "call_soon_threadsafe", deadly)  # noqa: B010 - a method of a living object


def _trap_recorder(trap: Trap, *, before: bool) -> None:
    record = FileRecorder.ok

    def deadly(recorder: FileRecorder, number: str, answer: Any) -> None:
        if before:
            trap.step()
        record(recorder, number, answer)
        trap.step()

    setattr(FileRecorder, "ok", deadly)  # noqa: B010 - a method of a class


class _Deadly(Watcher):
    """Files of which one kind of step is the last."""

    def __init__(self, trap: Trap, step: str) -> None:
        super().__init__()
        self._trap = trap
        self._step = step

    def _on(self, file: WatchedFile, step: str) -> bool:
        what = "log" if file.is_log else "database" if file.is_database else "journal"
        return self._step == f"{what}_{step}"

    def opened(self, file: WatchedFile) -> None:
        if self._on(file, "open"):
            self._trap.step()

    def write(self, file: WatchedFile, data: bytes, offset: int) -> None:
        if self._on(file, "write") or (self._on(file, "restart") and offset == 0):
            self._trap.step()
        if self._on(file, "half") and len(data) > 512:
            super().write(file, data[: len(data) // 2], offset)
            self._trap.step()
        super().write(file, data, offset)

    def sync(self, file: WatchedFile, flags: int) -> None:
        if self._on(file, "sync"):
            self._trap.step()
        super().sync(file, flags)
        if self._on(file, "synced"):
            self._trap.step()

    def delete(self, filename: str, sync_folder: bool) -> None:
        is_log = filename.endswith("-wal")
        if is_log and self._step == "log_delete":
            self._trap.step()
        super().delete(filename, sync_folder)
        if is_log and self._step == "log_deleted":
            self._trap.step()
