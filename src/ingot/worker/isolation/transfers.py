"""Transfers of files for a child without a network: the worker sends its requests to signed URLs.

Child and worker are connected by a socket of their own. For each request, the child sends a `TransferRequest` and the
content. The worker responds with a `TransferResponse` and the body in frames, of which the last one is empty. The
worker only sends requests to URLs that the server has issued for the attempt.
"""

from __future__ import annotations

import re
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from socket import SHUT_RDWR, socket
from typing import Any, Final

import httpx
import msgspec

from ingot.client.retry_policy import RetryPolicy
from ingot.kernel.errors import IngotError
from ingot.worker.attempt_files import RETRY_POLICY
from ingot.worker.isolation.messages import READ_BYTES, receive_exactly, receive_message, send_message
from ingot.worker.signed_url_client import SignedUrlClient

METHODS: Final = ("GET", "PUT", "PATCH")
# Besides those that the server has issued with a URL. Others, such as Host, could direct a request to another place.
HEADERS: Final = frozenset({"accept-encoding", "range", "if-range", "content-length", "upload-offset"})
HEADER_VALUE: Final = re.compile(r"[\x20-\x7e]*")
REQUEST_BYTES_MAX: Final = 64 * 1024
BROKEN: Final = 0xFFFF_FFFF  # The size of a frame that reports a lost connection.
_FRAME_SIZE: Final = struct.Struct("!I")


class TransferRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to a signed URL, which is followed by `size` bytes of content."""

    method: str
    url: str
    headers: dict[str, str]
    size: int


class TransferResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The status and headers of a response, or the `error` because of which there is none."""

    status: int = 0
    headers: list[tuple[str, str]] = []
    error: str | None = None


class RelayedUrlClient(SignedUrlClient):
    """A client for signed URLs in a child without a network. Thread-safe: transfers wait for each other."""

    def __init__(self, retry_policy: RetryPolicy, transfer_socket: socket) -> None:
        super().__init__(retry_policy)
        self._transfer_socket = transfer_socket
        self._lock = threading.Lock()

    def _send(
        self, method: str, url: str, headers: dict[str, str], content: Iterator[bytes] | None
    ) -> httpx.Response | None:
        if content is not None and "content-length" not in map(str.lower, headers):
            content = iter([b"".join(content)])
        self._lock.acquire()  # Released at the end of the response.
        try:
            response = self._exchange(method, url, headers, content)
        except BaseException:
            self._lock.release()
            raise
        body = _RelayedBody(self._transfer_socket, self._lock)
        return httpx.Response(response.status, headers=response.headers, stream=body)

    def _exchange(
        self, method: str, url: str, headers: dict[str, str], content: Iterator[bytes] | None
    ) -> TransferResponse:
        first = b"" if content is None else next(content, b"")
        size = next((int(text) for name, text in headers.items() if name.lower() == "content-length"), len(first))
        request = TransferRequest(method=method, url=url, headers=headers, size=size)
        try:
            send_message(self._transfer_socket, msgspec.json.encode(request))
            self._transfer_socket.sendall(first)
            for part in content or ():
                self._transfer_socket.sendall(part)
            response = msgspec.json.decode(receive_message(self._transfer_socket), type=TransferResponse)
        except (OSError, EOFError) as error:
            raise httpx.ReadError("the worker has closed the connection") from error
        if response.error is not None:
            raise httpx.ReadError(response.error)
        return response


class _RelayedBody(httpx.SyncByteStream):
    """The body of a response. When it is closed early, the rest is discarded."""

    def __init__(self, transfer_socket: socket, lock: threading.Lock) -> None:
        self._transfer_socket = transfer_socket
        self._lock: threading.Lock | None = lock

    def __iter__(self) -> Iterator[bytes]:
        while self._lock is not None and (part := self._receive_frame()):
            yield part

    def close(self) -> None:
        """Let the next transfer begin."""
        with suppress(httpx.ReadError):
            for _ in self:
                pass

    def _receive_frame(self) -> bytes:
        try:
            (size,) = _FRAME_SIZE.unpack(receive_exactly(self._transfer_socket, _FRAME_SIZE.size))
            if size == BROKEN:
                raise httpx.ReadError("the connection was lost")
            if size:
                return receive_exactly(self._transfer_socket, size)
        except (OSError, EOFError) as error:
            self._release()
            raise httpx.ReadError("the worker has closed the connection") from error
        except httpx.ReadError:
            self._release()
            raise
        self._release()
        return b""

    def _release(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()


class IssuedUrls:
    """The URLs that the server has issued for an attempt, each with names of headers. Thread-safe."""

    def __init__(self) -> None:
        self._headers_by_url: dict[str, frozenset[str]] = {}

    def add_from(self, response: bytes) -> None:
        """Add the URLs in a response of the server."""
        self._headers_by_url.update(_urls_in(msgspec.json.decode(response)))

    def allow(self, request: TransferRequest) -> bool:
        """Return whether the child may send this request."""
        headers = self._headers_by_url.get(request.url)
        return (
            headers is not None
            and request.method in METHODS
            and {name.lower() for name in request.headers} <= HEADERS | headers
            and all(map(HEADER_VALUE.fullmatch, request.headers.values()))
        )


def _urls_in(value: Any) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield the fields `url` of a response and of lists in it, each with the names in the field `headers` beside it."""
    if isinstance(value, dict):
        if isinstance(url := value.get("url"), str):
            yield url, frozenset(map(str.lower, value.get("headers") or {}))
        for element in value.values():
            if isinstance(element, list):
                for item in element:
                    yield from _urls_in(item)


class TransferThread:
    """Sends the requests of a child. `start` is called when the first one arrives."""

    def __init__(self, transfer_socket: socket, issued_urls: IssuedUrls) -> None:
        self._socket = transfer_socket
        self._issued_urls = issued_urls
        self._http = SignedUrlClient(RETRY_POLICY)

    def start(self) -> None:
        """Start the thread, which ends when the socket is closed."""
        threading.Thread(target=self._run, name="ingot-transfers", daemon=True).start()

    def _run(self) -> None:
        with suppress(OSError, EOFError, ValueError, msgspec.MsgspecError):
            try:
                while True:
                    self._relay(
                        msgspec.json.decode(receive_message(self._socket, REQUEST_BYTES_MAX), type=TransferRequest)
                    )
            finally:
                self._http.close()
                with suppress(OSError):
                    self._socket.shutdown(SHUT_RDWR)

    def _relay(self, request: TransferRequest) -> None:
        content = _Content(self._socket, request.size)
        try:
            response = self._open(request, content)
        except (httpx.TransportError, httpx.InvalidURL, IngotError) as error:
            content.discard()
            text = error.detail if isinstance(error, IngotError) else str(error) or type(error).__name__
            send_message(self._socket, msgspec.json.encode(TransferResponse(error=text)))
            return
        try:
            content.discard()
            head = TransferResponse(status=response.status_code, headers=list(response.headers.items()))
            send_message(self._socket, msgspec.json.encode(head))
            self._send_body(response)
        finally:
            response.close()

    def _open(self, request: TransferRequest, content: _Content) -> httpx.Response:
        if not self._issued_urls.allow(request):
            raise httpx.UnsupportedProtocol("the worker refused the request, because it was not issued for this job")
        headers = {name: text for name, text in request.headers.items() if name.lower() != "content-length"}
        if request.method == "GET":
            return self._http.open_signed_url(request.method, request.url, headers, None)
        headers["content-length"] = str(request.size)
        return self._http.open_signed_url(request.method, request.url, headers, content.parts())

    def _send_body(self, response: httpx.Response) -> None:
        try:
            for part in response.iter_raw():
                for start in range(0, len(part), READ_BYTES):
                    piece = part[start : start + READ_BYTES]
                    self._socket.sendall(_FRAME_SIZE.pack(len(piece)) + piece)
        except httpx.TransportError:
            self._socket.sendall(_FRAME_SIZE.pack(BROKEN))
        else:
            self._socket.sendall(_FRAME_SIZE.pack(0))


class _Content:
    """The content of a request, which the child sends."""

    def __init__(self, source: socket, size: int) -> None:
        self._source = source
        self._remaining = max(0, size)

    def parts(self) -> Iterator[bytes]:
        """Yield the content. Raises `EOFError` if the child ends."""
        while self._remaining:
            if not (part := self._source.recv(min(self._remaining, READ_BYTES))):
                raise EOFError
            self._remaining -= len(part)
            yield part

    def discard(self) -> None:
        """Read the rest, which the server did not want."""
        for _ in self.parts():
            pass
