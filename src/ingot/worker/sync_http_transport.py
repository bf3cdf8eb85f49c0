"""The counterpart of `async_http_transport` for threads. It streams the bodies of requests and responses."""

from __future__ import annotations

import select
import socket
import ssl
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from time import monotonic
from typing import Final

import httptools
import httpx

from ingot.worker.async_http_transport import (
    IDLE_CONNECTIONS_MAX,
    IDLE_SECONDS_MAX,
    READ_BYTES,
    ResponseParser,
    request_head,
)

COALESCED_BYTES_MAX: Final = 16 * 1024  # Small bodies are sent together with the headers.
DEFAULT_PORTS: Final = {"http": 80, "https": 443}
TIMEOUT_NAMES: Final = ("connect", "write", "read")
Endpoint = tuple[str, str, int]  # Scheme, host and port.


class _SyncConnection:
    """A connection that handles one request at a time."""

    def __init__(self, endpoint: Endpoint, tcp_socket: socket.socket) -> None:
        self.endpoint = endpoint
        self._socket = tcp_socket
        self._used_at = monotonic()
        self._is_sent = False
        self._is_reusable = False

    @property
    def is_usable(self) -> bool:
        """Whether a request can be sent now. Readable data means that the server closed it or sent something extra."""
        if not self._is_reusable or monotonic() - self._used_at > IDLE_SECONDS_MAX:
            return False
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        return not poller.poll(0)

    def send(self, head: bytes, body: Iterable[bytes], seconds: float | None) -> None:
        """Send a request. Return normally if the server stops reading, because its response says why."""
        self._is_reusable = self._is_sent = False
        self._socket.settimeout(seconds)
        buffer = head
        try:
            for part in body:
                if len(buffer) + len(part) > COALESCED_BYTES_MAX:
                    self._socket.sendall(buffer)
                    buffer = b""
                buffer = buffer + part if buffer else part
            self._socket.sendall(buffer)
            self._is_sent = True
        except (BrokenPipeError, ConnectionResetError):
            return

    def read(self, response: ResponseParser, seconds: float | None) -> None:
        """Read some more of a response."""
        self._socket.settimeout(seconds)
        data = self._socket.recv(READ_BYTES)
        if not data:
            raise httpx.RemoteProtocolError("the server closed the connection")
        response.parser.feed_data(data)
        self._used_at = monotonic()
        self._is_reusable = self._is_sent and response.is_reusable

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


class SyncKeepAliveTransport(httpx.BaseTransport):
    """Sends requests to any server over connections that it keeps open. Thread-safe."""

    def __init__(self) -> None:
        self._idle_connections: defaultdict[Endpoint, deque[_SyncConnection]] = defaultdict(deque)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request whose size is known. Raises `httpx.TransportError`."""
        if "transfer-encoding" in request.headers:
            raise httpx.UnsupportedProtocol("chunked requests are not supported; set Content-Length")
        assert isinstance(request.stream, httpx.SyncByteStream)
        url = request.url
        endpoint = (url.scheme, url.raw_host.decode("ascii"), url.port or DEFAULT_PORTS[url.scheme])
        seconds = request.extensions.get("timeout", {})
        return self.send(
            endpoint, request_head(request), request.stream, **{name: seconds.get(name) for name in TIMEOUT_NAMES}
        )

    def send(
        self,
        endpoint: Endpoint,
        head: bytes,
        body: Iterable[bytes],
        *,
        connect: float | None,
        write: float | None,
        read: float | None,
    ) -> httpx.Response:
        """Send encoded headers and a body.

        `connect`, `write` and `read` are the timeouts of single socket operations in seconds. Raises
        `httpx.TransportError`.
        """
        connection = self._acquire(endpoint, connect)
        response = ResponseParser()
        try:
            with _translate_errors():
                connection.send(head, body, write)
                while not response.status:
                    connection.read(response, read)
        except BaseException:
            connection.close()
            raise
        return httpx.Response(
            response.status, headers=response.headers, stream=_ResponseBody(self, connection, response, read)
        )

    def close(self) -> None:
        """Close all idle connections."""
        for idle in self._idle_connections.values():
            while idle:
                idle.pop().close()

    def release(self, connection: _SyncConnection) -> None:
        """Keep a connection for the next request if it is usable, or close it."""
        idle = self._idle_connections[connection.endpoint]
        if len(idle) < IDLE_CONNECTIONS_MAX and connection.is_usable:
            idle.append(connection)
        else:
            connection.close()

    def _acquire(self, endpoint: Endpoint, seconds: float | None) -> _SyncConnection:
        idle = self._idle_connections[endpoint]
        while idle:
            try:
                connection = idle.pop()
            except IndexError:  # Another thread took the last one.
                break
            if connection.is_usable:
                return connection
            connection.close()
        return _SyncConnection(endpoint, _connect(endpoint, seconds))


class _ResponseBody(httpx.SyncByteStream):
    """The body of a response, read from the connection during iteration."""

    def __init__(
        self,
        transport: SyncKeepAliveTransport,
        connection: _SyncConnection,
        response: ResponseParser,
        seconds: float | None,
    ) -> None:
        self._transport = transport
        self._connection = connection
        self._response = response
        self._seconds = seconds

    def __iter__(self) -> Iterator[bytes]:
        parts = self._response.parts
        while parts or not self._response.is_complete:
            if parts:
                yield parts.popleft()
            else:
                with _translate_errors():
                    self._connection.read(self._response, self._seconds)

    def close(self) -> None:
        """Release the connection."""
        self._transport.release(self._connection)


def _connect(endpoint: Endpoint, seconds: float | None) -> socket.socket:
    scheme, host, port = endpoint
    try:
        tcp_socket = socket.create_connection((host, port), timeout=seconds)
        tcp_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return ssl_context().wrap_socket(tcp_socket, server_hostname=host) if scheme == "https" else tcp_socket
    except TimeoutError as error:
        raise httpx.ConnectTimeout("the server could not be reached in time") from error
    except OSError as error:
        raise httpx.ConnectError(str(error)) from error


@cache
def ssl_context() -> ssl.SSLContext:
    """Return the TLS context of all connections. Certificates are read once, from SSL_CERT_FILE if it is set."""
    return httpx.create_ssl_context()


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise httpx.ReadTimeout("the server did not respond in time") from error
    except (OSError, httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
        raise httpx.ReadError(str(error)) from error
