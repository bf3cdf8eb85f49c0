"""Reads, on connections and threads of their own, which never block the writer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import apsw

from ingot.engines.command_tenants import tenant_of
from ingot.engines.fair_slots import FairSlots
from ingot.engines.json_rows import decode
from ingot.engines.sqlite.connection import open_reader, translate_error
from ingot.engines.sqlite.writer_state import WriterState
from ingot.kernel.clock import Clock
from ingot.kernel.commands import Command
from ingot.kernel.errors import StoreError

READER_THREADS: Final = 3
ABOVE_ALL_TEXTS: Final = "\U0010ffff"  # A list in descending order begins below this.

T = TypeVar("T")


class Reader:
    """The connection of one reader thread, with the state of the writer."""

    def __init__(self, connection: apsw.Connection, writer_state: WriterState, clock: Clock) -> None:
        self.connection = connection
        self.writer_state = writer_state
        self.clock = clock

    def execute(self, statement: str, *values: Any) -> apsw.Cursor:
        """Run one statement."""
        return self.connection.execute(statement, values)

    def read(self, type: type[T], statement: str, *values: Any) -> T:
        """Run a statement that always returns one JSON text, and decode it."""
        return decode(type, self.connection.execute(statement, values).get)

    def find(self, type: type[T], statement: str, *values: Any) -> T | None:
        """Run a statement that returns one JSON text or nothing, and decode it."""
        text = self.connection.execute(statement, values).get
        return None if text is None else decode(type, text)

    def snapshot(self) -> AbstractContextManager[object]:
        """Run all statements inside in one read transaction, so that they see the same data."""
        return self.connection


ReadHandler = Callable[[Reader, Any], Any]


class Readers:
    """Threads that run reads. Each opens its connection when it is first used.

    Reads of one tenant leave a thread to the others.
    """

    def __init__(self, path: Path, writer_state: WriterState, *, clock: Clock, vfs: str | None) -> None:
        self._path = path
        self._writer_state = writer_state
        self._clock = clock
        self._vfs = vfs
        self._local = threading.local()
        self._connections: list[apsw.Connection] = []
        self._slots = FairSlots(READER_THREADS, tenant_slots=READER_THREADS - 1)
        self._threads = ThreadPoolExecutor(READER_THREADS, thread_name_prefix="ingot-reader")

    def submit(self, read: ReadHandler, command: Command[Any]) -> Awaitable[Any]:
        """Run a read on one of the threads. Raises `TenantBusy`; the result is a `StoreError` after `close`."""
        loop, tenant = asyncio.get_running_loop(), tenant_of(command)
        answer: asyncio.Future[Any] = loop.create_future()

        def start() -> None:
            """Begin the read, unless its caller was canceled while it waited."""
            if answer.done():
                loop.call_soon(self._slots.leave, tenant)
                return
            try:
                result = self._threads.submit(self._run_read, read, command)
            except RuntimeError:  # The threads have been shut down.
                answer.set_exception(StoreError("The store is closed."))
                loop.call_soon(self._slots.leave, tenant)
                return
            result.add_done_callback(partial(_call_soon, loop, deliver))

        def deliver(result: Future[Any]) -> None:
            self._slots.leave(tenant)
            if answer.done():
                return
            if (error := result.exception()) is None:
                answer.set_result(result.result())
            else:
                answer.set_exception(error)

        self._slots.enter(tenant, start)
        return answer

    def close(self) -> None:
        """Stop the threads and close their connections. Blocks."""
        self._threads.shutdown()
        for connection in self._connections:
            connection.close()

    def _run_read(self, read: ReadHandler, command: Command[Any]) -> Any:
        try:
            return read(self._reader(), command)
        except apsw.Error as error:
            raise translate_error(error, action="read") from error

    def _reader(self) -> Reader:
        """Return the reader of this thread, which is opened on first use."""
        if not hasattr(self._local, "reader"):
            connection = open_reader(self._path, vfs=self._vfs)
            self._connections.append(connection)
            self._local.reader = Reader(connection, self._writer_state, self._clock)
        return self._local.reader  # type: ignore[no-any-return]


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[Future[Any]], None], result: Future[Any]) -> None:
    with suppress(RuntimeError):  # The event loop may be closed.
        loop.call_soon_threadsafe(callback, result)
