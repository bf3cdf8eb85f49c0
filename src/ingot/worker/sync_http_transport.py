"""The same for threads, and for bodies of any size: what is sent, and what comes, is nowhere whole."""

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

COALESCED_BYTES_MAX: Final = 16 * 1024  # Of a body that is sent together with the head of its request.
DEFAULT_PORTS: Final = {"http": 80, "https": 443}
TIMEOUT_NAMES: Final = ("connect", "write", "read")
Endpoint = tuple[str, str, int]  # Scheme, host and port.


class _SyncConnection:
    """One connection, with one request at a time."""

    def __init__(self, place: Endpoint, connected: socket.socket) -> None:
        self.endpoint = place
        self._socket = connected
        self._used_at = monotonic()
        self._is_sent = False
        self._is_reusable = False

    @property
    def is_usable(self) -> bool:
        """Whether a request may be sent over it: what can be read now is its end, or was not asked for."""
        if not self._is_reusable or monotonic() - self._used_at > IDLE_SECONDS_MAX:
            return False
        heard = select.poll()
        heard.register(self._socket, select.POLLIN)
        return not heard.poll(0)

    def send(self, head: bytes, body: Iterable[bytes], seconds: float | None) -> None:
        """Send a request. Where nobody reads it to its end, the answer says why."""
        self._is_reusable = self._is_sent = False
        self._socket.settimeout(seconds)
        text = head
        try:
            for part in body:
                if len(text) + len(part) > COALESCED_BYTES_MAX:
                    self._socket.sendall(text)
                    text = b""
                text = text + part if text else part
            self._socket.sendall(text)
            self._is_sent = True
        except (BrokenPipeError, ConnectionResetError):
            return

    def read(self, answer: ResponseParser, seconds: float | None) -> None:
        """Take in some more of an answer."""
        self._socket.settimeout(seconds)
        data = self._socket.recv(READ_BYTES)
        if not data:
            raise httpx.RemoteProtocolError("it closed the connection")
        answer.parser.feed_data(data)
        self._used_at = monotonic()
        self._is_reusable = self._is_sent and answer.is_reusable

    def close(self) -> None:
        """Let go of it."""
        self._socket.close()


class SyncKeepAliveTransport(httpx.BaseTransport):
    """Sends requests over connections that it keeps, to any place. From any thread."""

    def __init__(self) -> None:
        self._idle_connections: defaultdict[Endpoint, deque[_SyncConnection]] = defaultdict(deque)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, whose size is known. Raises `httpx.TransportError`."""
        if "transfer-encoding" in request.headers:
            raise httpx.UnsupportedProtocol("a request says how large it is")
        assert isinstance(request.stream, httpx.SyncByteStream)
        url = request.url
        place = (url.scheme, url.raw_host.decode("ascii"), url.port or DEFAULT_PORTS[url.scheme])
        seconds = request.extensions.get("timeout", {})
        return self.send(
            place, request_head(request), request.stream, **{name: seconds.get(name) for name in TIMEOUT_NAMES}
        )

    def send(
        self,
        place: Endpoint,
        head: bytes,
        body: Iterable[bytes],
        *,
        connect: float | None,
        write: float | None,
        read: float | None,
    ) -> httpx.Response:
        """Send a request as it is written, each step in so many seconds. Raises `httpx.TransportError`."""
        connection = self._acquire(place, connect)
        answer = ResponseParser()
        try:
            with _translate_errors():
                connection.send(head, body, write)
                while not answer.status:
                    connection.read(answer, read)
        except BaseException:
            connection.close()
            raise
        return httpx.Response(
            answer.status, headers=answer.headers, stream=_ResponseBody(self, connection, answer, read)
        )

    def close(self) -> None:
        """Let go of all connections."""
        for kept in self._idle_connections.values():
            while kept:
                kept.pop().close()

    def release(self, connection: _SyncConnection) -> None:
        """A request is over: the next one may go the same way, where it can."""
        kept = self._idle_connections[connection.endpoint]
        if len(kept) < IDLE_CONNECTIONS_MAX and connection.is_usable:
            kept.append(connection)
        else:
            connection.close()

    def _acquire(self, place: Endpoint, seconds: float | None) -> _SyncConnection:
        kept = self._idle_connections[place]
        while kept:
            try:
                found = kept.pop()
            except IndexError:  # Another thread was faster.
                break
            if found.is_usable:
                return found
            found.close()
        return _SyncConnection(place, _connect(place, seconds))


class _ResponseBody(httpx.SyncByteStream):
    """The body of an answer, as it comes."""

    def __init__(
        self,
        transport: SyncKeepAliveTransport,
        connection: _SyncConnection,
        answer: ResponseParser,
        seconds: float | None,
    ) -> None:
        self._transport = transport
        self._connection = connection
        self._answer = answer
        self._seconds = seconds

    def __iter__(self) -> Iterator[bytes]:
        parts = self._answer.parts
        while parts or not self._answer.is_complete:
            if parts:
                yield parts.popleft()
            else:
                with _translate_errors():
                    self._connection.read(self._answer, self._seconds)

    def close(self) -> None:
        """The answer is read, or wanted no more."""
        self._transport.release(self._connection)


def _connect(place: Endpoint, seconds: float | None) -> socket.socket:
    scheme, host, port = place
    try:
        connected = socket.create_connection((host, port), timeout=seconds)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return ssl_context().wrap_socket(connected, server_hostname=host) if scheme == "https" else connected
    except TimeoutError as error:
        raise httpx.ConnectTimeout("it cannot be reached in time") from error
    except OSError as error:
        raise httpx.ConnectError(str(error)) from error


@cache
def ssl_context() -> ssl.SSLContext:
    """Whom to trust: those that clients do, or that SSL_CERT_FILE names. They are read once."""
    return httpx.create_ssl_context()


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise httpx.ReadTimeout("it did not answer in time") from error
    except (OSError, httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
        raise httpx.ReadError(str(error)) from error
