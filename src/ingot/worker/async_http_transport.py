"""A minimal HTTP/1.1 transport with keep-alive, for asyncio.

httpx's own transport would take most of the processor time of a worker with short jobs.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from typing import Final

import httptools
import httpx

IDLE_CONNECTIONS_MAX: Final = 10
IDLE_SECONDS_MAX: Final = 4.0  # Shorter than the idle timeouts of servers and proxies.
READ_BYTES: Final = 256 * 1024
FINAL_STATUS_MIN: Final = 200


class ResponseParser:
    """Parses one response while its bytes arrive. The `on_` methods are callbacks of httptools."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.headers: list[tuple[bytes, bytes]] = []
        self.parts: deque[bytes] = deque()
        self.status = 0  # Set when the headers are complete.
        self.is_complete = False
        self.is_only_response = True
        self._is_keep_alive = False

    def on_message_begin(self) -> None:
        """Start a response. A second one is unexpected and makes the connection unusable."""
        self.is_only_response = self.status == 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header."""
        if self.is_only_response:
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Set the status, or skip an informational response (1xx)."""
        status = self.parser.get_status_code()
        if status < FINAL_STATUS_MIN:
            self.headers.clear()
        elif self.is_only_response:
            self.status = status

    def on_body(self, part: bytes) -> None:
        """Collect a part of the body."""
        if self.is_only_response:
            self.parts.append(part)

    def on_message_complete(self) -> None:
        """Mark the response as complete, unless it was informational."""
        self.is_complete = self.status != 0
        self._is_keep_alive = self.parser.should_keep_alive()  # The parser resets this after the callback.

    @property
    def is_reusable(self) -> bool:
        """Whether the connection can be used for another request."""
        return self.is_complete and self.is_only_response and self._is_keep_alive


class _AsyncConnection:
    """A connection that handles one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._used_at = asyncio.get_running_loop().time()
        self.is_reusable = False

    @property
    def is_usable(self) -> bool:
        """Whether a request can be sent now."""
        idle = asyncio.get_running_loop().time() - self._used_at
        return (
            self.is_reusable and idle < IDLE_SECONDS_MAX and not self._reader.at_eof() and not self._writer.is_closing()
        )

    async def send(self, request: bytes) -> httpx.Response:
        """Send a request and read the whole response."""
        self.is_reusable = False
        self._writer.write(request)
        response = ResponseParser()
        while not response.is_complete:
            data = await self._reader.read(READ_BYTES)
            if not data:
                raise httpx.RemoteProtocolError("the server closed the connection")
            response.parser.feed_data(data)
        self._used_at = asyncio.get_running_loop().time()
        self.is_reusable = response.is_reusable
        return httpx.Response(response.status, headers=response.headers, content=b"".join(response.parts))

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


class AsyncKeepAliveTransport(httpx.AsyncBaseTransport):
    """Sends requests over connections that it keeps open. Responses are read whole, so it cannot follow a stream."""

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
            raise httpx.ReadTimeout("the server did not respond in time") from error
        except (OSError, httpx.DecodingError, httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise httpx.ReadError(str(error)) from error
        finally:
            if connection.is_usable and len(self._idle_connections) < IDLE_CONNECTIONS_MAX:
                self._idle_connections.append(connection)
            else:
                connection.close()

    async def aclose(self) -> None:
        """Close all idle connections."""
        while self._idle_connections:
            self._idle_connections.pop().close()

    async def _acquire(self, url: httpx.URL, seconds: float | None) -> _AsyncConnection:
        while self._idle_connections:
            connection = self._idle_connections.pop()
            if connection.is_usable:
                return connection
            connection.close()
        is_tls = url.scheme == "https"
        if is_tls and self._ssl_context is None:
            self._ssl_context = httpx.create_ssl_context()
        try:
            async with asyncio.timeout(seconds):
                port = url.port or (443 if is_tls else 80)
                return _AsyncConnection(*await asyncio.open_connection(url.host, port, ssl=self._ssl_context))
        except TimeoutError as error:
            raise httpx.ConnectTimeout("the server could not be reached in time") from error
        except OSError as error:
            raise httpx.ConnectError(str(error)) from error


def request_head(request: httpx.Request) -> bytes:
    """Return the request line and the headers of a request."""
    lines = [b"%s %s HTTP/1.1" % (request.method.encode(), request.url.raw_path)]
    lines += [b"%s: %s" % pair for pair in request.headers.raw]
    return b"\r\n".join([*lines, b"", b""])
