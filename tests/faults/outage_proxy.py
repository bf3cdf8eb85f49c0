"""A TCP proxy in front of PostgreSQL that stalls, refuses or resets connections on command."""

from __future__ import annotations

import asyncio
import enum
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from tests.faults.postgres_proxy import CHUNK_BYTES, SOCKET

LINGER_ZERO = struct.pack("ii", 1, 0)  # A closed connection is reset.


class Outage(enum.Enum):
    """What happens to connections during an outage."""

    STALL = "stall"  # They stay open, and nothing passes. What was sent arrives at the end of the outage.
    REFUSE = "refuse"  # They end, and new ones are refused.
    RESET = "reset"  # They are reset, and new ones as soon as they are accepted.


class OutageProxy:
    """Forwards bytes between clients and the server, except during an outage."""

    def __init__(self, server: Path) -> None:
        self._server = server / SOCKET
        self._outage: Outage | None = None
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._listening: asyncio.Server | None = None
        self._clients: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def url(self) -> str:
        """The URL of the test database for a server."""
        return f"postgresql://ingot_server@127.0.0.1:{self.port}/ingot?sslmode=disable"

    async def begin(self, outage: Outage) -> None:
        """Begin an outage."""
        self._outage = outage
        if outage is Outage.STALL:
            self._flowing.clear()
            return
        if outage is Outage.REFUSE:
            self._stop_listening()
        for client in list(self._clients):
            _reset(client)

    async def end(self) -> None:
        """End the outage. After a stall, connections continue where they stopped."""
        self._outage = None
        self._flowing.set()
        if self._listening is None:
            await self.listen()

    async def listen(self) -> None:
        """Listen, always on the same port."""
        self._listening = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._listening.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """End all connections."""
        self._stop_listening()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _stop_listening(self) -> None:
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        if self._outage is Outage.RESET:
            _reset(to_client)
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._clients.add(to_client)
        writers = [to_client]
        try:
            await self._flowing.wait()
            server, to_server = await asyncio.open_unix_connection(str(self._server))
            writers.append(to_server)
            await asyncio.gather(self._forward(client, to_server), self._forward(server, to_client))
        except asyncio.CancelledError:
            return  # By `close`. The stream would report the cancellation as an error.
        finally:
            self._clients.discard(to_client)
            self._tasks.discard(task)
            for writer in writers:
                writer.close()

    async def _forward(self, source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while chunk := await source.read(CHUNK_BYTES):
                await self._flowing.wait()
                to.write(chunk)
        await self._flowing.wait()  # The other side notices the end only after a stall.
        to.close()


def _reset(client: asyncio.StreamWriter) -> None:
    connection = client.get_extra_info("socket")
    if connection is not None and not client.transport.is_closing():
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_ZERO)
        client.transport.abort()


@asynccontextmanager
async def open_outage_proxy(server: Path) -> AsyncIterator[OutageProxy]:
    """Start a proxy on a free port in front of the server whose socket is in the folder `server`."""
    proxy = OutageProxy(server)
    await proxy.listen()
    try:
        yield proxy
    finally:
        await proxy.close()
