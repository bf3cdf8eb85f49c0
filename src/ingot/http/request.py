"""Requests, request bodies and responses, as the handlers of routes use them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final, Generic, TypeVar

import msgspec

from ingot.events.audit import Act
from ingot.http.buffers import Reservation
from ingot.http.problems import BodyTooLarge, SlowSender, UnsupportedMedia
from ingot.identity.credentials import Caller, Forbidden
from ingot.identity.grants import ANY
from ingot.identity.people import ROLE_GRANTS, Role
from ingot.kernel.errors import InvalidInput

T = TypeVar("T")
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

CHUNK_BYTES_MIN: Final = 1024 * 1024  # Fast bodies are gathered up to this size, so that parts of blobs need no copy.
GATHER_SECONDS: Final = 0.02  # Received bytes are held back for at most this long.
QUIET_SECONDS_MAX: Final = 30.0  # A sender that sends nothing for this long is rejected.
# A sender that is slower than PACE_BYTES_MIN per second, averaged over PACE_SECONDS, is rejected. Only the time that
# the server waits for bytes counts.
PACE_BYTES_MIN: Final = 512
PACE_SECONDS: Final = 60.0


class ClientDisconnected(Exception):
    """The client disconnected before the response was sent."""


class Headers:
    """The headers of a request. A header that was sent twice is ambiguous and has no value."""

    def __init__(self, raw: Iterable[tuple[bytes, bytes]]) -> None:
        pairs = list(raw)
        self._values = {name.decode("latin-1"): value.decode("latin-1") for name, value in pairs}
        self._repeated: dict[str, list[str]] = {}
        if len(self._values) < len(pairs):
            values: dict[str, list[str]] = {}
            for name, value in pairs:
                values.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
            self._repeated = {name: lines for name, lines in values.items() if len(lines) > 1}

    def get(self, name: str) -> str | None:
        """Return the value of a header, or `None` if it is missing or was sent twice. Names are in lower case."""
        return None if self._repeated and name in self._repeated else self._values.get(name)

    def get_list(self, name: str) -> list[str]:
        """Return the elements of a comma-separated header. One that was sent several times is one list."""
        lines = self._repeated.get(name) or [self._values.get(name, "")]
        return [element.strip() for line in lines for element in line.split(",")]

    def require_unique(self, names: Iterable[str]) -> None:
        """Raise `InvalidInput` if one of these headers was sent twice."""
        for name in names if self._repeated else ():
            if name in self._repeated:
                raise InvalidInput(f"the header {name} was sent twice", hint="Send it once. Nothing was changed.")

    def has(self, name: str) -> bool:
        """Return whether a header was sent, once or more often."""
        return name in self._values


class Request(msgspec.Struct, kw_only=True):
    """An authenticated request, as handlers receive it. Its body and query are separate arguments of the handler."""

    caller: Caller
    tenant: str  # ID of the tenant. Empty for routes that need no credential, or only a signed URL.
    headers: Headers
    path_params: dict[str, str]
    request_id: str
    method: str = "GET"  # The method that was sent, which is HEAD for some requests to GET routes.
    trace_id: str | None = None
    client: tuple[str, int] | None = None  # Address and port of the peer, which may be a proxy.
    signed_params: dict[str, str] | None = None  # The parameters of a signed URL.
    # Returns the address of the client, seen through trusted proxies.
    resolve_address: Callable[[tuple[str, int] | None, Headers], str | None] | None = None
    reservation: Reservation | None = None  # The bytes of this request and its response that are in memory.
    uncount: Callable[[], None] = lambda: None  # Takes back that the request counts against the limit of its client.
    undo: Callable[[], Awaitable[None]] | None = None  # Set by the handler, and called if the response cannot be sent.

    def act(self) -> Act:
        """Return a new author of a change for the audit log: the caller, with its address and request ID."""
        address = None if self.resolve_address is None else self.resolve_address(self.client, self.headers)
        caller = self.caller
        return Act(who=caller.principal, name=caller.label, address=address, request_id=self.request_id)

    @property
    def base_url(self) -> str:
        """The URL of the server according to the Host header, which the client controls."""
        return f"http://{self.headers.get('host') or ''}"

    def resolve_idempotency_key(self, key: str | None) -> str | None:
        """Return the idempotency key of the body or of the header. Raises `InvalidInput` if they differ."""
        header = self.headers.get("idempotency-key")
        if header is None or key == header:
            return key
        if key is not None:
            raise InvalidInput(
                "the Idempotency-Key header and the body have different keys", hint="Send the key in one place only."
            )
        return header

    def require_operator(self, predicate: str) -> None:
        """Raise `Forbidden` unless the caller is an operator. The predicate completes "only an operator …"."""
        if not self.caller.is_operator:
            raise Forbidden(f"only an operator {predicate}", hint="Use an operator token, or ask an operator.")

    def require_role(self, role: Role) -> None:
        """Raise `Forbidden` unless the caller has all grants of a role, as it must to assign that role."""
        for grant in ROLE_GRANTS[role]:
            self.require(grant.action, grant.resource)

    def require(self, action: str, resource: str = ANY) -> None:
        """Raise `Forbidden` unless the caller has a grant for this action and resource."""
        self.caller.require(action, resource)


def is_body_complete(receive: Receive) -> bool:
    """Return whether the whole body has arrived. It usually has, and then reading it needs no timeout."""
    return not getattr(getattr(receive, "__self__", None), "more_body", True)


class RequestBody:
    """The body of a request as a stream with backpressure. `length` is its size, if the client announced it.

    Raises `InvalidInput` for a partial body (Content-Range), which would be stored as if it were complete, and
    `UnsupportedMedia` for an encoded one, whose encoding would be lost.
    """

    def __init__(self, headers: Headers, receive: Receive, *, bytes_max: int | None) -> None:
        if headers.has("content-range"):
            raise InvalidInput("Content-Range is not supported", hint="Send all bytes, or use a resumable upload.")
        if headers.has("content-encoding") and headers.get("content-encoding") != "identity":
            raise UnsupportedMedia(
                "the body has a Content-Encoding", hint="Send the raw bytes without Content-Encoding."
            )
        length = headers.get("content-length")
        self.length = None if length is None else int(length)
        self.content_type = headers.get("content-type")
        self._receive = receive
        self._bytes_max = bytes_max
        self._received_bytes = 0
        self._has_more = True
        self._window_seconds = 0.0
        self._window_bytes = 0

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body in order, in chunks of 1 MiB or more if it arrives fast enough.

        Raises `ClientDisconnected` before the end, `SlowSender` if nothing arrives for 30 seconds or too little in a
        minute, and `BodyTooLarge` above the limit of the route.
        """
        if self._bytes_max is not None and self.length is not None and self.length > self._bytes_max:
            raise BodyTooLarge(f"the body has {self.length} bytes; this route accepts at most {self._bytes_max}")
        while self._has_more:
            chunk = await self._gather()
            if chunk:
                yield chunk

    async def _gather(self) -> bytes:
        """Return the next chunk: when it is large enough, or when no more bytes arrive for a moment."""
        if is_body_complete(self._receive):
            return await self._receive_next()
        now = asyncio.get_running_loop().time
        began = now()
        pieces: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout_at(began + QUIET_SECONDS_MAX) as deadline:
                while self._has_more and size < CHUNK_BYTES_MIN:
                    piece = await self._receive_next()
                    if piece and not size:
                        deadline.reschedule(now() + GATHER_SECONDS)
                    pieces.append(piece)
                    size += len(piece)
        except TimeoutError:
            if not size:
                raise SlowSender(f"no bytes of the body arrived for {QUIET_SECONDS_MAX:g} seconds") from None
        self._require_minimum_rate(now() - began, size)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _require_minimum_rate(self, seconds: float, size: int) -> None:
        """Record the size and waiting time of a chunk. Raises `SlowSender` if the sender was too slow in a window."""
        self._window_seconds += seconds
        self._window_bytes += size
        if self._has_more and self._window_seconds >= PACE_SECONDS:
            if self._window_bytes < PACE_BYTES_MIN * self._window_seconds:
                raise SlowSender(
                    f"only {self._window_bytes} bytes of the body arrived in {self._window_seconds:.0f} seconds"
                )
            self._window_seconds, self._window_bytes = 0.0, 0

    async def _receive_next(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        piece: bytes = message.get("body", b"")
        self._received_bytes += len(piece)
        if self._bytes_max is not None and self._received_bytes > self._bytes_max:
            raise BodyTooLarge(f"the body has more than {self._bytes_max} bytes")
        self._has_more = message.get("more_body", False)
        return piece


class Response(msgspec.Struct, Generic[T], frozen=True):
    """A response with a status, headers or cookies of its own. Other handlers return only the content."""

    content: T
    status: int | None = None
    headers: dict[str, str] = {}
    cookies: tuple[str, ...] = ()


class StreamResponse(msgspec.Struct, frozen=True):
    """A response of server-sent events. Each chunk contains whole events and is sent at once."""

    chunks: AsyncGenerator[bytes, None]


class BytesResponse(msgspec.Struct, frozen=True):
    """A response of `length` bytes that are not in memory. For HEAD, `chunks` are not read.

    `chunks` are closed when the client disconnects. If they raise, or do not add up to `length`, the connection is
    aborted, so that no client takes an incomplete body for the whole one.
    """

    length: int
    chunks: AsyncIterator[bytes | memoryview]
    headers: dict[str, str] = {}
    status: int | None = None
