"""Plain requests over connections that are kept: the rest of what a client of HTTP can do would cost a worker most."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from typing import Final

import httptools
import httpx

IDLE_CONNECTIONS_MAX: Final = 10
IDLE_SECONDS_MAX: Final = 4.0  # Servers let go of a connection that is not used, ours after 5 seconds.
READ_BYTES: Final = 256 * 1024
FINAL_STATUS_MIN: Final = 200


class ResponseParser:
    """What the parser tells of an answer as it comes in."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.headers: list[tuple[bytes, bytes]] = []
        self.parts: deque[bytes] = deque()
        self.status = 0  # Once its head is there.
        self.is_complete = False
        self.is_only_response = True
        self._is_keep_alive = False

    def on_message_begin(self) -> None:
        """An answer begins; the second was not asked for."""
        self.is_only_response = self.status == 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header."""
        if self.is_only_response:
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is there, unless it only says that the answer is to come."""
        status = self.parser.get_status_code()
        if status < FINAL_STATUS_MIN:
            self.headers.clear()
        elif self.is_only_response:
            self.status = status

    def on_body(self, part: bytes) -> None:
        """A part of the body."""
        if self.is_only_response:
            self.parts.append(part)

    def on_message_complete(self) -> None:
        """That was all, unless it only said that the answer is to come."""
        self.is_complete = self.status != 0
        self._is_keep_alive = self.parser.should_keep_alive()  # A moment later the parser has forgotten.

    @property
    def is_reusable(self) -> bool:
        """Whether another may be asked for where this one came from."""
        return self.is_complete and self.is_only_response and self._is_keep_alive


class _AsyncConnection:
    """One connection, with one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._used_at = asyncio.get_running_loop().time()
        self.is_reusable = False

    @property
    def is_usable(self) -> bool:
        """Whether a request may be sent over it."""
        idle = asyncio.get_running_loop().time() - self._used_at
        return (
            self.is_reusable and idle < IDLE_SECONDS_MAX and not self._reader.at_eof() and not self._writer.is_closing()
        )

    async def send(self, text: bytes) -> httpx.Response:
        """Send a request, and read all of the answer."""
        self.is_reusable = False
        self._writer.write(text)
        answer = ResponseParser()
        while not answer.is_complete:
            data = await self._reader.read(READ_BYTES)
            if not data:
                raise httpx.RemoteProtocolError("it closed the connection")
            answer.parser.feed_data(data)
        self._used_at = asyncio.get_running_loop().time()
        self.is_reusable = answer.is_reusable
        return httpx.Response(answer.status, headers=answer.headers, content=b"".join(answer.parts))

    def close(self) -> None:
        """Let go of it."""
        self._writer.close()


class AsyncKeepAliveTransport(httpx.AsyncBaseTransport):
    """Answers are read whole; a stream that does not end is not for it."""

    def __init__(self) -> None:
        self._idle_connections: deque[_AsyncConnection] = deque()
        self._ssl_context: ssl.SSLContext | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request. Raises `httpx.TransportError`."""
        timeouts = request.extensions.get("timeout", {})
        connection = await self._acquire(request.url, timeouts.get("connect"))
        try:
            async with asyncio.timeout(timeouts.get("read")):
                return await connection.send(request_head(request) + request.content)
        except TimeoutError as error:
            raise httpx.ReadTimeout("it did not answer in time") from error
        except (OSError, httpx.DecodingError, httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise httpx.ReadError(str(error)) from error
        finally:
            if connection.is_usable and len(self._idle_connections) < IDLE_CONNECTIONS_MAX:
                self._idle_connections.append(connection)
            else:
                connection.close()

    async def aclose(self) -> None:
        """Let go of all connections."""
        while self._idle_connections:
            self._idle_connections.pop().close()

    async def _acquire(self, url: httpx.URL, seconds: float | None) -> _AsyncConnection:
        while self._idle_connections:
            kept = self._idle_connections.pop()
            if kept.is_usable:
                return kept
            kept.close()
        secure = url.scheme == "https"
        if secure and self._ssl_context is None:
            self._ssl_context = httpx.create_ssl_context()  # Those that clients trust, or SSL_CERT_FILE names.
        try:
            async with asyncio.timeout(seconds):
                port = url.port or (443 if secure else 80)
                return _AsyncConnection(*await asyncio.open_connection(url.host, port, ssl=self._ssl_context))
        except TimeoutError as error:
            raise httpx.ConnectTimeout("it cannot be reached in time") from error
        except OSError as error:
            raise httpx.ConnectError(str(error)) from error


def request_head(request: httpx.Request) -> bytes:
    """The text of a request up to its body."""
    lines = [b"%s %s HTTP/1.1" % (request.method.encode(), request.url.raw_path)]
    lines += [b"%s: %s" % pair for pair in request.headers.raw]
    return b"\r\n".join([*lines, b"", b""])
