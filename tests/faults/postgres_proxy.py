"""A proxy between a client and PostgreSQL that loses a request, or its response, on command, or withholds it."""

from __future__ import annotations

import asyncio
import enum
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

SOCKET = ".s.PGSQL.5432"
CHUNK_BYTES = 65_536
QUERY, PARSE, BIND, SYNC = b"Q", b"P", b"B", b"S"
READY_FOR_QUERY = b"Z"
ERROR = b"E"
# The message of a backend that was terminated, and the time until it closes the connection.
TERMINATED = b"SFATAL\0VFATAL\0C57P01\0Mterminating connection due to administrator command\0\0"
END_SECONDS = 0.05


class Loss(enum.Enum):
    """What is lost together with the connection."""

    REQUEST = "request"
    RESPONSE = "response"


class Part(enum.Enum):
    """What passes before a stall."""

    NOTHING = "nothing"
    REQUEST = "request"
    HALF_OF_RESPONSE = "half"


class Proxy:
    """Forwards the messages of both sides."""

    def __init__(self, server: Path) -> None:
        self._server = server / SOCKET
        self._text: bytes | None = None
        self._loss = Loss.RESPONSE
        self._meanwhile: Callable[[], Awaitable[object]] | None = None
        self._passing: Part | None = None
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._clients: set[asyncio.StreamWriter] = set()
        self.losses = 0
        self.is_down = False

    def lose(self, loss: Loss, text: str, *, meanwhile: Callable[[], Awaitable[object]] | None = None) -> None:
        """Lose the next statement that contains `text`, or its response. `meanwhile` runs before the client notices."""
        self._loss, self._text, self._meanwhile = loss, text.encode(), meanwhile

    def stall(self, part: Part, text: str) -> None:
        """Stall all connections when the next statement that contains `text` is sent, after a part has passed."""
        self.lose(Loss.REQUEST if part is Part.NOTHING else Loss.RESPONSE, text)
        self._passing = part

    def end_stall(self) -> None:
        """Let new connections pass. Those that were stalled end."""
        self._flowing.set()

    def terminate(self) -> None:
        """End all connections as the server does: with a message first, and the end of the stream a moment later."""
        for client in self._clients:
            client.write(_message(ERROR, TERMINATED))
            asyncio.get_running_loop().call_later(END_SECONDS, client.close)

    async def serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """Forward one connection until either side or the proxy ends it."""
        if self.is_down:
            to_client.close()
            return
        self._clients.add(to_client)
        await self._flowing.wait()
        server, to_server = await asyncio.open_unix_connection(str(self._server))
        connection = ClientConnection(self, client, to_server)
        responses = asyncio.create_task(_pass_on(server, to_client, self._flowing))
        try:
            lost = await connection.pass_on_until_lost()
            if lost is None:
                return
            responses.cancel()
            with suppress(asyncio.CancelledError):
                await responses
            if lost is Loss.RESPONSE:
                first = await _wait_for_response(server)
                if self._passing is Part.HALF_OF_RESPONSE:
                    to_client.write(first[: len(first) // 2])
            if self._passing is not None:
                self._passing = None
                self._flowing.clear()
                await self._flowing.wait()
            if self._meanwhile is not None:
                await self._meanwhile()
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            responses.cancel()
            to_server.close()
            to_client.close()
            self._clients.discard(to_client)

    async def wait_for_flow(self) -> None:
        """Wait for the end of a stall."""
        await self._flowing.wait()

    def loss_for(self, text: bytes) -> Loss | None:
        """Return what to lose of this statement. Called once for each statement that is run."""
        if self._text is None or self._text not in text:
            return None
        self._text = None
        self.losses += 1
        return self._loss


class ClientConnection:
    """The messages of one client."""

    def __init__(self, proxy: Proxy, client: asyncio.StreamReader, to_server: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._client = client
        self._to_server = to_server
        self._statements: dict[bytes, bytes] = {}

    async def pass_on_until_lost(self) -> Loss | None:
        """Forward messages until one has to be lost, or the client ends."""
        try:
            (size,) = struct.unpack("!i", startup := await self._client.readexactly(4))
            self._to_server.write(startup + await self._client.readexactly(size - 4))
            loss: Loss | None = None
            while True:
                kind, body = await _read_message(self._client)
                await self._proxy.wait_for_flow()
                loss = loss or self._proxy.loss_for(self._statement_of(kind, body))
                if loss is Loss.REQUEST:
                    return loss
                self._to_server.write(_message(kind, body))
                if loss is Loss.RESPONSE and kind in (QUERY, SYNC):
                    return loss
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    def _statement_of(self, kind: bytes, body: bytes) -> bytes:
        """Return the text of the statement that a message runs."""
        if kind == QUERY:
            return body
        if kind == PARSE:
            name, text, _ = body.split(b"\0", 2)
            self._statements[name] = text
        if kind == BIND:
            _, name, _ = body.split(b"\0", 2)
            return self._statements.get(name, b"")
        return b""


async def _read_message(stream: asyncio.StreamReader) -> tuple[bytes, bytes]:
    kind, size = struct.unpack("!ci", await stream.readexactly(5))
    return kind, await stream.readexactly(size - 4)


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


async def _pass_on(stream: asyncio.StreamReader, to: asyncio.StreamWriter, flowing: asyncio.Event) -> None:
    with suppress(ConnectionError):
        while chunk := await stream.read(CHUNK_BYTES):
            await flowing.wait()
            to.write(chunk)
        to.close()


async def _wait_for_response(server: asyncio.StreamReader) -> bytes:
    """Read the lost response, after which the request has been processed, and return its first message.

    Earlier responses were forwarded whole.
    """
    kind, body = await _read_message(server)
    first = _message(kind, body)
    while kind != READY_FOR_QUERY:
        kind, _ = await _read_message(server)
    return first


@asynccontextmanager
async def open_proxy(folder: Path, server: Path) -> AsyncIterator[Proxy]:
    """Start a proxy with its socket in `folder`, in front of the server whose socket is in the folder `server`."""
    proxy = Proxy(server)
    listening = await asyncio.start_unix_server(proxy.serve, str(folder / SOCKET))
    try:
        yield proxy
    finally:
        listening.close()
        proxy.end_stall()
