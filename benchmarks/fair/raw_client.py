"""A client of few lines on raw sockets, so that it uses little of the CPU time that the server needs."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

CPU_SHARE_MAX: Final = 0.25  # Of one core.
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
DRIP_SECONDS: Final = 0.05


def request(method: str, path: str, token: str, body: bytes, *, length: int | None = None) -> bytes:
    """Return a whole request, or with `length` one whose body is sent later."""
    head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {token}\r\n"
    size = len(body) if length is None else length
    if method != "GET":
        head += f"content-type: application/json\r\ncontent-length: {size}\r\n"
    return head.encode() + b"\r\n" + body


class Counts:
    """How many requests were accepted and refused, by status, and how many the server holds open."""

    def __init__(self) -> None:
        self.statuses: Counter[int] = Counter()
        self.closed = 0
        self.held = 0

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Count a request as held open during the block."""
        self.held += 1
        try:
            yield
        finally:
            self.held -= 1

    def add(self, status: int) -> None:
        self.statuses[status] += 1

    @property
    def accepted(self) -> int:
        return sum(count for status, count in self.statuses.items() if status < 400)

    @property
    def refused(self) -> int:
        return self.statuses.total() - self.accepted


class Pace:
    """Keeps this process below its share of a core."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Count from now."""
        self._began, self._cpu = time.monotonic(), time.process_time()

    @property
    def share(self) -> float:
        """The share of a core that was used."""
        return (time.process_time() - self._cpu) / max(time.monotonic() - self._began, 1e-6)

    async def wait(self) -> None:
        """Pause until the share is low enough."""
        used = time.process_time() - self._cpu
        await asyncio.sleep(max(0.0, used / CPU_SHARE_MAX - (time.monotonic() - self._began)))


class Connection:
    """A connection that is used again for each request."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def close(self) -> None:
        self._writer.close()

    async def exchange(self, message: bytes) -> tuple[int, bytes]:
        """Send a request and return the status and body of the response."""
        self._writer.write(message)
        await self._writer.drain()
        status, length = await self._read_head()
        return status, await self._reader.readexactly(length)

    async def drip(self, head: bytes, first: bytes, drip: bytes) -> int:
        """Send a body slowly until the server responds, and return the status. This ends the connection."""
        self._writer.write(head + first)
        response = asyncio.ensure_future(self._read_head())
        try:
            while not response.done():
                self._writer.write(drip)
                await asyncio.wait([response], timeout=DRIP_SECONDS)
            return (await response)[0]
        finally:
            response.cancel()
            self.close()

    async def follow(self, message: bytes, counts: Counts) -> None:
        """Open a stream, and read it until the server ends it. A refused one is an ordinary response."""
        self._writer.write(message)
        status, length = await self._read_head()
        counts.add(status)
        if status != 200:
            await self._reader.readexactly(length)
            return
        with counts.holding():
            while await self._reader.read(65536):
                pass
        raise EOFError

    async def _read_head(self) -> tuple[int, int]:
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        return int(head[9:12]), int(length[1]) if length else 0
