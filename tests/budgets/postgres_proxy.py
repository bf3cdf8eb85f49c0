"""A proxy for PostgreSQL that counts statements, sets the time, and makes sessions report touched buffers."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import asyncpg

from ingot.kernel.clock import Clock
from tests.postgres import TEMPLATE, create_database, own_server

SOCKET: Final = ".s.PGSQL.5432"
DATABASE: Final = "budgets"
QUERY, EXECUTE, READY_FOR_QUERY = b"Q", b"E", b"Z"
# A session reports its statistics once per second, or at the end of this statement.
REPORT: Final = "SET ingot.now = '{now}'; SELECT pg_stat_force_next_flush()\0"
BUFFERS: Final = "SELECT blks_hit + blks_read FROM pg_stat_database WHERE datname = $1"
# A concurrent vacuum would be counted, and change which buffers later requests touch.
SETTINGS: Final = "autovacuum = off\n"


class Session:
    """One connection to PostgreSQL."""

    def __init__(self, proxy: PostgresProxy, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._reported: asyncio.Future[None] | None = None

    async def pass_on_requests(self, client: asyncio.StreamReader) -> None:
        """Pass on messages of the client, and count the statements."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            (size,) = struct.unpack("!i", startup := await client.readexactly(4))
            self._server.write(startup + await client.readexactly(size - 4))
            while True:
                kind, message = await _read_message(client)
                self._proxy.statements += kind in (QUERY, EXECUTE)
                self._server.write(message)
        self._server.close()

    async def pass_on_responses(self, server: asyncio.StreamReader) -> None:
        """Pass on messages of the server, except responses to the proxy's own statement."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                kind, message = await _read_message(server)
                if self._reported is None:
                    self._client.write(message)
                elif kind == READY_FOR_QUERY:
                    self._reported.set_result(None)
                    self._reported = None
        self._client.close()

    async def report(self, now: int) -> None:
        """Make the idle session report its statistics, and set its time."""
        reported = self._reported = asyncio.get_running_loop().create_future()
        statement = REPORT.format(now=now).encode()
        self._server.write(QUERY + struct.pack("!i", len(statement) + 4) + statement)
        await reported


class PostgresProxy:
    """The proxy for the connections of one server."""

    def __init__(self, socket: Path, observer: asyncpg.Connection[asyncpg.Record], clock: Clock) -> None:
        self._socket = socket
        self._clock = clock
        self._observer = observer
        self._sessions: set[Session] = set()
        self.statements = 0
        self.url = ""

    async def buffers(self) -> int:
        """The number of buffers that all sessions have touched so far.

        The sessions must be idle. They get the current time of the clock.
        """
        for session in self._sessions:
            await session.report(self._clock.micros())
        return int(await self._observer.fetchval(BUFFERS, DATABASE))

    async def serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """Serve one connection until either side ends it."""
        server, to_server = await asyncio.open_unix_connection(str(self._socket))
        session = Session(self, to_client, to_server)
        self._sessions.add(session)
        await asyncio.gather(session.pass_on_requests(client), session.pass_on_responses(server))
        self._sessions.discard(session)


async def _read_message(stream: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The kind of the next message, and the message with its kind."""
    kind, size = struct.unpack("!ci", header := await stream.readexactly(5))
    return kind, header + await stream.readexactly(size - 4)


@asynccontextmanager
async def open_proxy(clock: Clock) -> AsyncIterator[PostgresProxy]:
    """A proxy for a new database in its own cluster, with the time of this clock."""
    with own_server(SETTINGS) as cluster:
        await create_database(cluster.url, DATABASE, TEMPLATE)
        observer = await asyncpg.connect(cluster.url)
        await observer.execute(f"ALTER DATABASE {DATABASE} SET ingot.now = '{clock.micros()}'")
        proxy = PostgresProxy(cluster.folder / SOCKET, observer, clock)
        listening = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        proxy.url = f"postgresql://ingot_server@127.0.0.1:{port}/{DATABASE}?sslmode=disable"
        try:
            yield proxy
        finally:
            listening.close()
            await observer.close()
