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

from ingot.worker.lean import CONNECTIONS_KEPT, KEPT_SECONDS, READ_BYTES, Answer, head_of

JOINED_BYTES_MAX: Final = 16 * 1024  # Of a body that is sent together with the head of its request.
PORTS: Final = {"http": 80, "https": 443}
TIMES: Final = ("connect", "write", "read")
Place = tuple[str, str, int]  # Scheme, host and port.


class _Connection:
    """One connection, with one request at a time."""

    def __init__(self, place: Place, connected: socket.socket) -> None:
        self.place = place
        self._socket = connected
        self._used_at = monotonic()
        self._is_sent = False
        self._lasts = False

    @property
    def is_usable(self) -> bool:
        """Whether a request may be sent over it: what can be read now is its end, or was not asked for."""
        if not self._lasts or monotonic() - self._used_at > KEPT_SECONDS:
            return False
        heard = select.poll()
        heard.register(self._socket, select.POLLIN)
        return not heard.poll(0)

    def send(self, head: bytes, body: Iterable[bytes], seconds: float | None) -> None:
        """Send a request. Where nobody reads it to its end, the answer says why."""
        self._lasts = self._is_sent = False
        self._socket.settimeout(seconds)
        text = head
        try:
            for part in body:
                if len(text) + len(part) > JOINED_BYTES_MAX:
                    self._socket.sendall(text)
                    text = b""
                text = text + part if text else part
            self._socket.sendall(text)
            self._is_sent = True
        except (BrokenPipeError, ConnectionResetError):
            return

    def read(self, answer: Answer, seconds: float | None) -> None:
        """Take in some more of an answer."""
        self._socket.settimeout(seconds)
        data = self._socket.recv(READ_BYTES)
        if not data:
            raise httpx.RemoteProtocolError("it closed the connection")
        answer.parser.feed_data(data)
        self._used_at = monotonic()
        self._lasts = self._is_sent and answer.lasts

    def close(self) -> None:
        """Let go of it."""
        self._socket.close()


class SyncLeanTransport(httpx.BaseTransport):
    """Sends requests over connections that it keeps, to any place. From any thread."""

    def __init__(self) -> None:
        self._kept: defaultdict[Place, deque[_Connection]] = defaultdict(deque)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, whose size is known. Raises `httpx.TransportError`."""
        if "transfer-encoding" in request.headers:
            raise httpx.UnsupportedProtocol("a request says how large it is")
        assert isinstance(request.stream, httpx.SyncByteStream)
        url = request.url
        place = (url.scheme, url.raw_host.decode("ascii"), url.port or PORTS[url.scheme])
        seconds = request.extensions.get("timeout", {})
        return self.send(place, head_of(request), request.stream, **{name: seconds.get(name) for name in TIMES})

    def send(
        self,
        place: Place,
        head: bytes,
        body: Iterable[bytes],
        *,
        connect: float | None,
        write: float | None,
        read: float | None,
    ) -> httpx.Response:
        """Send a request as it is written, each step in so many seconds. Raises `httpx.TransportError`."""
        connection = self._connection(place, connect)
        answer = Answer()
        try:
            with _faults():
                connection.send(head, body, write)
                while not answer.status:
                    connection.read(answer, read)
        except BaseException:
            connection.close()
            raise
        return httpx.Response(answer.status, headers=answer.headers, stream=_Body(self, connection, answer, read))

    def close(self) -> None:
        """Let go of all connections."""
        for kept in self._kept.values():
            while kept:
                kept.pop().close()

    def keep(self, connection: _Connection) -> None:
        """A request is over: the next one may go the same way, where it can."""
        kept = self._kept[connection.place]
        if len(kept) < CONNECTIONS_KEPT and connection.is_usable:
            kept.append(connection)
        else:
            connection.close()

    def _connection(self, place: Place, seconds: float | None) -> _Connection:
        kept = self._kept[place]
        while kept:
            try:
                found = kept.pop()
            except IndexError:  # Another thread was faster.
                break
            if found.is_usable:
                return found
            found.close()
        return _Connection(place, _connected(place, seconds))


class _Body(httpx.SyncByteStream):
    """The body of an answer, as it comes."""

    def __init__(
        self, transport: SyncLeanTransport, connection: _Connection, answer: Answer, seconds: float | None
    ) -> None:
        self._transport = transport
        self._connection = connection
        self._answer = answer
        self._seconds = seconds

    def __iter__(self) -> Iterator[bytes]:
        parts = self._answer.parts
        while parts or not self._answer.is_whole:
            if parts:
                yield parts.popleft()
            else:
                with _faults():
                    self._connection.read(self._answer, self._seconds)

    def close(self) -> None:
        """The answer is read, or wanted no more."""
        self._transport.keep(self._connection)


def _connected(place: Place, seconds: float | None) -> socket.socket:
    scheme, host, port = place
    try:
        connected = socket.create_connection((host, port), timeout=seconds)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return trusted().wrap_socket(connected, server_hostname=host) if scheme == "https" else connected
    except TimeoutError as error:
        raise httpx.ConnectTimeout("it cannot be reached in time") from error
    except OSError as error:
        raise httpx.ConnectError(str(error)) from error


@cache
def trusted() -> ssl.SSLContext:
    """Whom to trust: those that clients do, or that SSL_CERT_FILE names. They are read once."""
    return httpx.create_ssl_context()


@contextmanager
def _faults() -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise httpx.ReadTimeout("it did not answer in time") from error
    except (OSError, httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
        raise httpx.ReadError(str(error)) from error
