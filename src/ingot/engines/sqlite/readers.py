"""Reads, on connections and threads of their own, which never block the writer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, TypeVar

import apsw

from ingot.engines.json_rows import decode
from ingot.engines.sqlite.connection import open_reader, translate_error
from ingot.engines.sqlite.writer_state import WriterState
from ingot.kernel.clock import Clock
from ingot.kernel.commands import Command
from ingot.kernel.errors import StoreError

READER_THREADS: Final = 2
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
    """Threads that run reads. Each opens its connection when it is first used."""

    def __init__(self, path: Path, writer_state: WriterState, *, clock: Clock, vfs: str | None) -> None:
        self._path = path
        self._writer_state = writer_state
        self._clock = clock
        self._vfs = vfs
        self._local = threading.local()
        self._connections: list[apsw.Connection] = []
        self._threads = ThreadPoolExecutor(READER_THREADS, thread_name_prefix="ingot-reader")

    def submit(self, read: ReadHandler, command: Command[Any]) -> Awaitable[Any]:
        """Run a read on one of the threads. Raises `StoreError` after `close`."""
        try:
            return asyncio.get_running_loop().run_in_executor(self._threads, self._run_read, read, command)
        except RuntimeError:  # The threads have been shut down.
            raise StoreError("The store is closed.") from None

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
