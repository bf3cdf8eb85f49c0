"""Named points at which a process kills itself. They are found from outside: the tested code does not know them."""

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
from tests.faults.watched_files import WatchedFile, WatchingVFS

WRITER_THREAD = "ingot-writer"

# Statements of the writer, found by a part of their text. The process is killed before the statement runs.
STATEMENTS = {
    "before a group begins": "BEGIN IMMEDIATE",
    "before an outcome is written": "INSERT INTO outcomes",
    "before an attempt is written": "INSERT INTO attempts",
    "before the events are written": "INSERT INTO events",
    "before the counts are written": "INSERT INTO counts",
    "before the clock is stored": "UPDATE store SET clock",
    "before the commit": "COMMIT",
}
# Statements that run while a store is opened.
OPENING_STATEMENTS = {
    "before the epoch is increased": "UPDATE store SET epoch",
    "after the epoch is increased, before its commit": "SELECT clock FROM store",
}
# Statements that run while a new store is created.
CREATING_STATEMENTS = {
    "before the ledger of migrations": "CREATE TABLE IF NOT EXISTS migrations",
    "in the middle of a migration": "CREATE TABLE attempts",
    "before a migration is recorded": "INSERT INTO migrations",
}
FILES = {
    "in the middle of the log": "log_write",
    "after half a page of the log": "log_half",
    "before the log is synced": "log_sync",
    "after the log is synced": "log_synced",
    "when the log is restarted": "log_restart",
    "before a checkpoint writes": "database_write",
    "after half a page of a checkpoint": "database_half",
    "before a checkpoint is synced": "database_sync",
    "after a checkpoint is synced": "database_synced",
}
CLOSING_FILES = {
    "before the log is deleted": "log_delete",
    "after the log is deleted": "log_deleted",
}
CREATING_FILES = {
    "when the file is created": "database_open",
    "before the first page is synced": "database_sync",
    "when the log is created": "log_open",
}
RESULTS = ("after the commit, before any result", "when a result was received", "when a result was recorded")
BETWEEN_STATEMENTS = "between two statements of a group"

WORKING = (*STATEMENTS, *FILES, *RESULTS, BETWEEN_STATEMENTS)
OPENING = tuple(OPENING_STATEMENTS)
CLOSING = tuple(CLOSING_FILES)
CREATING = (*CREATING_STATEMENTS, *CREATING_FILES)
RARE = frozenset({"when the log is restarted", "before a checkpoint is synced", "after a checkpoint is synced"})


class Trap:
    """Kills this process at the n-th step."""

    def __init__(self, countdown: int) -> None:
        self._countdown = countdown
        self._lock = threading.Lock()

    def step(self) -> None:
        """Count a step. The last one does not return."""
        with self._lock:
            self._countdown -= 1
            if self._countdown == 0:
                os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(60)


def arm(point: str, countdown: int) -> WatchingVFS | None:
    """Set the trap in a process with an event loop and no store yet. Return the VFS that the store must use, if any."""
    trap = Trap(countdown)
    statements = STATEMENTS | OPENING_STATEMENTS | CREATING_STATEMENTS
    files = FILES | CLOSING_FILES | CREATING_FILES
    if point in statements:
        _trace(lambda sql: trap.step() if statements[point] in sql else None)
    elif point == BETWEEN_STATEMENTS:
        _trace(lambda sql: trap.step() if threading.current_thread().name == WRITER_THREAD else None)
    elif point in files:
        return _KillingVFS(trap, files[point])
    elif point == RESULTS[0]:
        _trap_delivery(trap)
    else:
        assert point in RESULTS, f"unknown point: {point}"
        _trap_recorder(trap, before=point == RESULTS[1])
    return None


def _trace(on_statement: Callable[[str], None]) -> None:
    def trace(cursor: object, sql: str, bindings: object) -> bool:
        on_statement(sql)
        return True

    def hook(connection: apsw.Connection) -> None:
        connection.exec_trace = trace

    apsw.connection_hooks.append(hook)


def _trap_delivery(trap: Trap) -> None:
    loop = asyncio.get_running_loop()
    deliver = loop.call_soon_threadsafe

    def call_with_trap(*args: Any, **options: Any) -> asyncio.Handle:
        if threading.current_thread().name == WRITER_THREAD:
            trap.step()
        return deliver(*args, **options)

    setattr(loop, "call_soon_threadsafe", call_with_trap)  # noqa: B010 - a method of a living object


def _trap_recorder(trap: Trap, *, before: bool) -> None:
    record = FileRecorder.ok

    def call_with_trap(recorder: FileRecorder, number: str, answer: Any) -> None:
        if before:
            trap.step()
        record(recorder, number, answer)
        trap.step()

    setattr(FileRecorder, "ok", call_with_trap)  # noqa: B010 - a method of a class


class _KillingVFS(WatchingVFS):
    """Files on which one kind of step is a step of the trap."""

    def __init__(self, trap: Trap, step: str) -> None:
        super().__init__()
        self._trap = trap
        self._step = step

    def _is_step(self, file: WatchedFile, step: str) -> bool:
        kind = "log" if file.is_log else "database" if file.is_database else "journal"
        return self._step == f"{kind}_{step}"

    def opened(self, file: WatchedFile) -> None:
        if self._is_step(file, "open"):
            self._trap.step()

    def write(self, file: WatchedFile, data: bytes, offset: int) -> None:
        if self._is_step(file, "write") or (self._is_step(file, "restart") and offset == 0):
            self._trap.step()
        if self._is_step(file, "half") and len(data) > 512:
            super().write(file, data[: len(data) // 2], offset)
            self._trap.step()
        super().write(file, data, offset)

    def sync(self, file: WatchedFile, flags: int) -> None:
        if self._is_step(file, "sync"):
            self._trap.step()
        super().sync(file, flags)
        if self._is_step(file, "synced"):
            self._trap.step()

    def delete(self, filename: str, sync_folder: bool) -> None:
        is_log = filename.endswith("-wal")
        if is_log and self._step == "log_delete":
            self._trap.step()
        super().delete(filename, sync_folder)
        if is_log and self._step == "log_deleted":
            self._trap.step()
